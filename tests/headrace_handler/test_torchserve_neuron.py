"""The example of a handler for Inferentia2, on a CPU, with a tiny Llama."""

import shutil
from pathlib import Path

import pytest
import yaml

from tests.headrace_handler.support import RecordingReply, call, imports_of_a_child
from tests.headrace_handler.torchserve_models import load
from tests.parity.checkpoints import write_checkpoint

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_code" / "inferentia2"
PROMPTS = [b"the sea", b"a small boat on the sea", b"one of them"]


def answers(folder: Path, micro_batch_size: int) -> list[RecordingReply]:
    config = yaml.safe_load((folder / "model-config.yaml").read_text())
    config["micro_batching"]["micro_batch_size"] = micro_batch_size
    with imports_of_a_child("ts", "torch_neuronx", "transformers_neuronx"):
        return call(load(folder, batch_size=config["batchSize"], config=config), *PROMPTS, path="")


def test_micro_batches_of_one_and_of_four_stream_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NEURON_RT_NUM_CORES", "NEURON_CC_FLAGS", "NEURONX_CACHE", "NEURONX_DUMP_TO"):
        monkeypatch.setenv(name, "1")  # restored after the handler has changed it
    folder = tmp_path / "m"
    shutil.copytree(EXAMPLE, folder)
    write_checkpoint("llama", folder / "checkpoint")
    (folder / "checkpoint" / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')

    singly, by_four = answers(folder, 1), answers(folder, 4)

    assert [reply.body for reply in singly] == [reply.body for reply in by_four]
    for prompt, reply in zip(PROMPTS, singly, strict=True):
        assert reply.body.startswith(prompt)
        assert len(reply.body) > len(prompt)
    for reply in (*singly, *by_four):
        assert len(reply.chunks) > 1
        assert reply.header("ts_stream_next") == "true"
