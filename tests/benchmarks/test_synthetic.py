"""Synthetic models load, as a folder and as a file, and have the same network."""

from dataclasses import asdict, replace
from itertools import product
from math import prod

import pytest
from benchmarks.synthetic.chat import HEADRACE, HISTORIES, LLAMA_SERVER, ChatTurn
from benchmarks.synthetic.make import SHAPES, file_of, gguf_shape, tensors_of, write_folder, write_gguf
from benchmarks.synthetic.report import page
from benchmarks.synthetic.run import LAYERS
from benchmarks.synthetic.steps import Turn, Work, batched_rows, reason_of, work_of

from headrace.inference.models.loading import load_model

SMALL = {"layers": 2, "hidden": 64, "intermediate": 96, "heads": 4, "kv_heads": 2, "head_dim": 32, "vocab": 512}


@pytest.mark.parametrize("name", SHAPES)
def test_the_folder_and_the_file_of_a_shape_hold_the_same_network(name, tmp_path):
    shape = replace(SHAPES[name], **SMALL)
    write_folder(shape, tmp_path / "folder")
    write_gguf(file_of(shape), tmp_path / "file.gguf")
    folder, file = load_model(str(tmp_path / "folder")), load_model(str(tmp_path / "file.gguf"))
    assert replace(folder.spec, norm_eps=0, moe=None) == replace(file.spec, norm_eps=0, moe=None)
    for model in (folder, file):
        assert (model.spec.moe.num_experts if model.spec.moe else 0) == shape.experts
        assert (model.spec.moe.top_k if model.spec.moe else 0) == shape.top_k
        assert len(list(model.weights.names())) > 0
        assert model.tokenizer.encode("Hi !") != []


def test_the_rows_of_a_table_of_llama_batched_bench_are_read():
    text = (
        "main: n_kv_max = 1280, n_batch = 2048\n\n"
        "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |\n"
        "|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|\n"
        "|   128 |     32 |    1 |    160 |    0.411 |   311.44 |    0.795 |    40.25 |    1.206 |   132.67 |\n"
        "|   128 |     32 |    8 |   1280 |    3.500 |   292.57 |    2.100 |   121.90 |    5.600 |   228.57 |\n"
    )
    assert list(batched_rows(text)) == [
        {"prompt": 128, "sequences": 1, "prefill": 311.44, "decode": 40.25},
        {"prompt": 128, "sequences": 8, "prefill": 292.57, "decode": 121.90},
    ]


@pytest.mark.parametrize("name", SHAPES)
def test_the_work_of_a_token_counts_the_chosen_experts_only(name, tmp_path):
    shape = replace(SHAPES[name], **SMALL | {"intermediate": 128})
    write_gguf(file_of(shape), tmp_path / "file.gguf")
    model = load_model(str(tmp_path / "file.gguf"))
    work = work_of(file_of(shape), tmp_path / "file.gguf", "bf16")
    inactive = shape.layers * 3 * shape.hidden * shape.intermediate * max(0, shape.experts - shape.top_k)
    layers = model.spec.num_parameters - inactive - 2 * shape.vocab * shape.hidden
    assert work.operations == pytest.approx(2 * layers, rel=0.01)
    assert work.state_bytes == 0
    # bf16 keys and values of 144 tokens.
    assert work.kv_bytes == 144 * shape.layers * 2 * 2 * shape.kv_heads * shape.head_dim
    routers_bytes = 4 * shape.layers * shape.hidden * shape.experts
    assert work.decode_bytes == pytest.approx(2 * (layers + shape.vocab * shape.hidden) + routers_bytes, rel=0.05)


def test_the_shapes_of_today_have_as_many_parameters_as_their_names_say():
    billions = {
        "llama-3.2-1b": 1.5, "llama-3.1-8b": 8.0, "qwen3-30b-a3b": 30.5, "mixtral-8x7b": 46.7, "qwen3.5-4b": 4.2,
        "qwen3.5-9b": 9.0, "qwen3.6-35b-a3b": 34.7, "gemma-4-e2b": 4.6, "gemma-4-26b-a4b": 25.2, "lfm2-1.2b": 1.17,
        "granite-4-h-tiny": 6.9, "glm-4.7-flash": 29.9, "smollm2-135m": 0.163,
    }  # fmt: skip
    for name in LAYERS:
        total = sum(prod(tensor.dims) for tensor in tensors_of(gguf_shape(name)))
        assert total / 1e9 == pytest.approx(billions.pop(name), rel=0.02), name
    assert not billions


UNKNOWN = """\
['bench', '-m', 'error.gguf'] exited with 1:
0.00.042.011 E llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'x'
llama_load_model_from_file: failed to load model
"""
MISSING = """\
['bench'] exited with 1:
llama_model_load: error loading model: missing tensor 'blk.0.attn_k_b.weight'
main: error: unable to load model
"""


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (UNKNOWN, "error loading model architecture: unknown model architecture: 'x'"),
        (MISSING, "missing tensor 'blk.0.attn_k_b.weight'"),
        ("['bench'] exited with -11:\n", "['bench'] exited with -11:"),
    ],
)
def test_the_reason_of_a_peer_is_the_line_that_names_it(output, reason):
    assert reason_of(output) == reason


def step_turn(engine: str, speed: float, share: float | None) -> dict:
    turn = Turn(
        engine=engine,
        tokens_per_s={"decode 1": speed, "decode 8": 4 * speed, "prefill 512": 10 * speed},
        bandwidth_share=share,
        read_bytes_per_s=40e9,
        doctor_bytes_per_s=50e9,
        operations_per_s=1e12,
        foreign_cores=0.01,
    )
    return asdict(turn) | ({"token_bytes": 1_000_000_000} if share else {})


def chat_turn(server: str, history: str, turn: int) -> dict:
    answer = ChatTurn(
        server=server,
        history=history,
        round=0,
        turn=turn,
        prompt_tokens=1000 * turn,
        answer_tokens=32,
        new_tokens=900,
        computed_tokens=910 if server == HEADRACE else 1400,
        ttft_s=0.5,
    )
    return asdict(answer) | {"recomputed_tokens": answer.recomputed_tokens}


def test_the_page_has_medians_shares_refusals_and_chats():
    origin = {"date": "2026-11-28", "versions": {"llama.cpp": "1"}, "layers": 4, "of_layers": 16}
    speeds = [("Headrace w4a8", speed, 0.9) for speed in (30, 40, 50)] + [("llama.cpp", 20, None)]
    work = Work(decode_bytes=990_000_000, state_bytes=6_000_000, kv_bytes=4_000_000, operations=1e9)
    turns = [step_turn(*speed) for speed in speeds]
    del turns[-1]["tokens_per_s"]["prefill 512"]
    model = origin | {"work": asdict(work), "turns": turns, "refusals": {"ik_llama.cpp": "unknown"}}
    answers = [chat_turn(*cell) for cell in product((HEADRACE, LLAMA_SERVER), HISTORIES, (1, 2, 3))]
    machine = {"cpu": "CPU", "physical_cores": 2}
    text = page({"machine": machine, "models": {"m": model}, "chats": {"m": origin | {"turns": answers}}})
    assert (
        "| Headrace w4a8 | 40.0 (90% of the roof, 80% of `doctor`, 2.00x llama.cpp) | 160.0 (2.00x llama.cpp) |" in text
    )
    assert "0.99 GB of weights, 6.0 MB of state, 4.0 MB of KV" in text
    assert "| llama.cpp | 20.0 | 80.0 | ends |" in text
    assert "| ik_llama.cpp | unknown | | |" in text
    assert text.count("| 2 and later, median | | 900 | 10 | 500 | 500 | 500 |") == len(HISTORIES)
