"""Sentences of the docs have the numbers of the stored results; `scripts/charts.py` writes the tables."""

import re
import statistics
from pathlib import Path

import pytest
from benchmarks.tables import (
    ENGINE_CELLS,
    PEERS,
    SHAPES,
    engine_speed,
    ratios_over_http,
    result,
    serving,
    shape_ratios,
    shape_speed,
    span,
)

DOCS = Path(__file__).parent.parent.parent / "docs"
MANY = ("c8", "c32", "c64")
SHAPE_CELLS = ("decode 8", "prefill 512")


def sentence_of(page: str, start: str) -> str:
    """Return the text of a page from these words to the end of the paragraph, in one line and without links."""
    text = (DOCS / page).read_text()
    paragraph = text[text.index(start) :].split("\n\n")[0]
    return re.sub(r"\s+", " ", paragraph)


def stall_ms(server: str) -> float:
    return serving()["late"][server]["gap_max_ms"]


def start_s(server: str) -> float:
    return statistics.median(start["start_s"] for start in result("cpu-serving")["starts"] if start["row"] == server)


def test_the_comparison_has_the_ratios_to_llama_server() -> None:
    text = sentence_of("comparison.md", "On two x86 cores Headrace was")
    for_one, for_many = (span(ratios_over_http("llama-q4_0", cells)) for cells in (("c1",), MANY))
    assert f"{for_one} times as fast for one client and {for_many} times for 8 to 64" in text
    stalls = f"{stall_ms('headrace-w4a8'):.0f} ms instead of {stall_ms('llama-q4_0') / 1000:.1f} s"
    assert stalls in text


def test_the_comparison_has_the_ratios_to_vllm() -> None:
    text = sentence_of("comparison.md", "On two CPU cores Headrace's own engine")
    for_one, for_many = (span(ratios_over_http("vllm-bf16", cells)) for cells in (("c1",), MANY))
    assert f"{for_one} times as fast for one client and {for_many} times for 8 to 64" in text
    assert f"in {start_s('headrace-w4a8'):.1f} s instead of {start_s('vllm-bf16'):.0f} s" in text


def test_the_page_on_sizing_has_the_speed_of_the_shape_of_8b() -> None:
    decode_1, decode_8, prefill = (
        f"{shape_speed('llama-3.1-8b', cell, 'Headrace w4a8'):.0f}" for cell in ("decode 1", "decode 8", "prefill 512")
    )
    text = sentence_of("guides/sizing.md", "A file with the shape of Llama 3.1 8B")
    assert f"{decode_1} tokens a second for one stream, {decode_8} for eight together" in text
    assert f"prompts at {prefill} tokens a second" in text


def test_the_page_on_speed_has_the_figures_of_the_long_prompt() -> None:
    text = sentence_of("performance.md", "Eight streams run when a prompt")
    late = serving()["late"]
    seconds = [f"{late[row]['late_ttft_ms'] / 1000:.1f} s" for row in ("headrace-w4a8", "vllm-bf16", "llama-q4_0")]
    assert "came after {}, with vLLM after {}, with llama-server after {}".format(*seconds) in text


def test_the_page_on_speed_says_which_goals_were_missed() -> None:
    ours = ("Headrace bf16", "Headrace w8a8", "Headrace w4a8")
    peers = [f"{engine} {dtype}" for engine, dtypes in PEERS.items() for dtype in dtypes]
    n1, n8, n64 = (
        max(engine_speed(name, cell) for name in ours) / max(engine_speed(name, cell) for name in peers)
        for cell in ENGINE_CELLS[:3]
    )
    assert f"{n1:.1f}, {n64:.1f} and {n8:.1f} times were reached" in sentence_of("performance.md", "The goals were")


def test_the_formats_of_vllm_are_compared() -> None:
    ratios = [engine_speed("vLLM W8A8", cell) / engine_speed("vLLM bf16", cell) for cell in ENGINE_CELLS[:3]]
    text = re.sub(r"\s+", " ", (DOCS / "performance.md").read_text())
    assert f"its W8A8 was {span(ratios)} times as fast as its bf16" in text


def test_the_page_on_speed_has_the_ratios_of_known_shapes() -> None:
    text = sentence_of("performance.md", "Larger models, with and without experts")
    ours, others = (
        [span([shape_ratios(model, cell, peer) for model in SHAPES]) for cell in SHAPE_CELLS]
        for peer in ("llama.cpp", "ik_llama.cpp")
    )
    assert f"is {ours[0]} times as fast as llama.cpp and {others[0]} times as fast as ik_llama.cpp" in text
    assert f"prompts {ours[1]} and {others[1]} times" in text


@pytest.mark.parametrize("page", ["guides/sizing.md", "performance.md"])
def test_the_wait_for_an_endpoint_at_zero_is_the_measured_one(page: str) -> None:
    summary = result("wake")["summary"]
    wait = f"{summary['all_requests_p50_s']:.2f} s in the median"
    text = (DOCS / page).read_text()
    assert wait in text
    assert f"{summary['wake_ups']} wake-ups" in text
