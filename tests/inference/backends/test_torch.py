"""Our networks in torch behind the engine and behind a server, on the CPU."""

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headrace.core.errors import SettingsError
from headrace.serving.server.engine_config import load_engine
from headrace.serving.settings.server_settings import ServerSettings
from tests import plain_http
from tests.e2e.conftest import serve
from tests.inference.engine.support import ask, request, running
from tests.parity.references import torch_network
from tests.waiting import WAIT_S

PROMPTS = [tuple((7 * index + 11 * offset) % 300 + 4 for index in range(20 + 13 * offset)) for offset in range(4)]
NUM_TOKENS = 12


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A folder, and the greedy tokens of transformers after each prompt."""
    folder = tmp_path_factory.mktemp("torch") / "model"
    network = torch_network("qwen 3", folder)
    answers = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(NUM_TOKENS):
                tokens.append(int(network(torch.tensor([tokens])).logits[0, -1].argmax()))
        answers.append(tokens[len(prompt) :])
    return folder, answers


def settings_of(folder: Path, **changes) -> ServerSettings:
    settings = ServerSettings(model=str(folder), cache_dir=folder.parent, backend="torch", dtype="fp32", threads=1)
    return replace(settings, **changes)


async def test_concurrent_answers_are_those_of_transformers(checkpoint):
    folder, expected = checkpoint
    async with running(load_engine(settings_of(folder, max_num_batched_tokens=16, max_num_seqs=8))) as engine:
        assert engine.info.backend == "torch"
        assert engine.info.dtype == "fp32"
        assert not engine.info.is_batch_invariant
        wanted = [request(prompt, max_new_tokens=NUM_TOKENS, ignore_eos=True) for prompt in PROMPTS]
        answers = await asyncio.gather(*(ask(engine, request) for request in wanted))
        scored = await ask(engine, request(PROMPTS[0], max_new_tokens=2, prompt_logprobs=1, logprobs=2))
    assert [answer.ids for answer in answers] == expected
    assert scored.prompt is not None
    assert all(len(token.top) == 2 for token in scored.tokens)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "w8a16"}, r"dtype is w8a16; expected one of auto, bf16, fp16, fp32, fp8, w8a8, w4a16"),
        ({"kv_dtype": "int8"}, r"kv_dtype is int8; expected auto or fp32 with dtype fp32"),
        ({"isa": "avx2"}, r"isa is avx2, which selects kernels of the native backend"),
        ({"batch_invariant": True}, r"batch_invariant is true and device is cpu"),
        ({"tensor_parallel_size": 3}, r"tensor_parallel_size is 3, but the model has 4 attention heads"),
    ],
)
def test_settings_that_this_backend_cannot_apply_are_refused(checkpoint, changes, message):
    with pytest.raises(SettingsError, match=message):
        load_engine(settings_of(checkpoint[0], **changes))


def children_of(pid: int) -> list[int]:
    """Return the processes of the ranks that a server has started."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    pids = [int(child) for children in found for child in children.read_text().split()]
    return [child for child in pids if b"rank_process" in Path(f"/proc/{child}/cmdline").read_bytes()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_server_of_two_ranks_answers_and_no_rank_outlives_it(checkpoint, tmp_path):
    """
    The end of a rank before the server's is tested with the runner (tests/inference/runner/torch/test_parallel.py).
    """
    folder, _ = checkpoint
    flags = ("--backend", "torch", "--tensor-parallel-size", "2", "--dtype", "fp32", "--max-model-len", "96")
    served = serve(folder, tmp_path, *flags)
    try:
        body = {"inputs": "Once upon", "parameters": {"max_new_tokens": 5}}
        response = plain_http.post(f"{served.url}/generate", json=body, timeout=WAIT_S)
        assert response.status_code == 200, response.text
        (rank,) = children_of(served.process.pid)
        os.kill(served.process.pid, signal.SIGKILL)
        wait_for(lambda: not is_running(rank))
    finally:
        if served.process.poll() is None:
            served.stop()


@pytest.mark.model
async def test_a_gguf_file_is_served_in_its_4_bits(smollm2_path, tmp_path):
    settings = settings_of(smollm2_path, dtype="auto", cache_dir=tmp_path, max_model_len=128, max_num_seqs=2)
    async with running(load_engine(settings)) as engine:
        assert engine.info.dtype == "w4a16"
        answer = await ask(engine, request("1, 2, 3, 4,", max_new_tokens=6))
    assert answer.text == " 5, 6,"
