import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.fit import advice_text
from headrace.cli.sizing import FORMATS, Advice, advise, fit_formats
from headrace.core.errors import InsufficientMemory
from headrace.engine.loading.formats import Formats
from headrace.runner.memory import MemoryPlan

WEIGHTS = {"bf16": 1000, "w8a16": 500, "w8a8": 500, "w4a16": 250, "w4a8": 250}
KV = {"bf16": 2, "int8": 1}
BF16 = Formats(dtype="bf16", kv_dtype="bf16", reason="bf16 is nearest to the file")


def planner(available: int):
    """A planner with small numbers: one byte of KV cache per token in int8, two in bf16."""

    def plan(*, dtype: str, kv_dtype: str, max_model_len: int, max_num_seqs: int) -> MemoryPlan:
        room = available - WEIGHTS[dtype]
        kv_bytes = min(max_model_len * max_num_seqs * KV[kv_dtype], room)
        if kv_bytes < max_model_len * KV[kv_dtype]:
            raise InsufficientMemory("too little")
        return MemoryPlan(
            weights_bytes=WEIGHTS[dtype],
            resident_weights_bytes=WEIGHTS[dtype],
            mapping="none",
            workspace_bytes=0,
            adapter_bytes=0,
            kv_bytes_per_token=KV[kv_dtype],
            block_bytes=KV[kv_dtype],
            num_blocks=kv_bytes // KV[kv_dtype],
            kv_cache_bytes=kv_bytes,
            total_bytes=WEIGHTS[dtype] + kv_bytes,
            reserve_bytes=0,
            available_bytes=available,
        )

    return plan


def advice_for(available: int, *, auto: tuple[str, str] = ("bf16", "bf16"), context: int = 8192) -> Advice | None:
    plan = planner(available)
    fits = fit_formats(plan, max_model_len=context, max_num_seqs=2, available_bytes=available)
    return advise(plan, fits, auto=auto, max_model_len=context, max_num_seqs=2)


@given(st.integers(300, 100_000), st.integers(32, 8192))
def test_the_kv_cache_may_use_all_memory_besides_the_weights(available: int, context: int) -> None:
    fits = fit_formats(planner(available), max_model_len=context, max_num_seqs=2, available_bytes=available)
    assert [(fit.dtype, fit.kv_dtype) for fit in fits] == list(FORMATS)
    for fit in fits:
        room = (available - WEIGHTS[fit.dtype]) // KV[fit.kv_dtype]
        if fit.plan is None:
            assert room < context
            assert fit.refusal
        else:
            assert fit.room_tokens == room
            assert fit.sequences_of(context) == room // context


def test_the_default_format_is_recommended_if_it_fits() -> None:
    assert advice_for(100_000, auto=("w4a8", "int8")) == Advice(dtype="w4a8", kv_dtype="int8", max_model_len=8192)


def test_the_best_format_that_fits_is_recommended_if_the_default_does_not() -> None:
    assert advice_for(8192 + 600) == Advice(dtype="w8a8", kv_dtype="int8", max_model_len=8192)


def test_weights_on_disk_are_recommended_only_if_no_format_fits_into_memory() -> None:
    plan = planner(100_000)
    fits = fit_formats(plan, max_model_len=8192, max_num_seqs=2, available_bytes=100_000)
    on_disk = [replace(fit, plan=replace(fit.plan, mapping="required")) for fit in fits if fit.plan is not None]
    for mixed, dtype in ((on_disk[:2] + fits[2:], fits[2].dtype), (on_disk, "bf16")):
        advice = advise(plan, mixed, auto=("bf16", "bf16"), max_model_len=8192, max_num_seqs=2)
        assert advice is not None
        assert advice.dtype == dtype


def test_the_longest_context_that_fits_is_recommended_if_none_does() -> None:
    assert advice_for(250 + 2100) == Advice(dtype="w4a8", kv_dtype="int8", max_model_len=2048)


def test_nothing_is_recommended_if_nothing_fits() -> None:
    assert advice_for(300) is None
    assert "does not fit here in any format" in advice_text("m", None, BF16, 8192)


@pytest.mark.parametrize(
    ("advice", "command"),
    [
        (Advice(dtype="bf16", kv_dtype="bf16", max_model_len=8192), "headrace serve my/model"),
        (
            Advice(dtype="w8a8", kv_dtype="int8", max_model_len=8192),
            "headrace serve my/model --dtype w8a8 --kv-dtype int8",
        ),
        (
            Advice(dtype="w4a8", kv_dtype="int8", max_model_len=2048),
            "headrace serve my/model --dtype w4a8 --kv-dtype int8 --max-model-len 2048",
        ),
    ],
)
def test_the_advice_is_a_command_to_copy(advice: Advice, command: str) -> None:
    assert advice_text("my/model", advice, BF16, 8192).splitlines()[-1].strip() == command


@pytest.mark.model
def test_the_memory_of_a_real_model(headrace, smollm2_path) -> None:
    value = json.loads(headrace("fit", smollm2_path, "--memory", "4GiB", "--json").stdout)
    assert value["family"] == "llama"
    assert value["advice"] == {"dtype": "w4a16", "kv_dtype": "bf16", "max_model_len": 8192}
    assert "under 1 B" in value["default"]["reason"]
    weights = {row["dtype"]: row["plan"]["weights_bytes"] for row in value["formats"]}
    assert weights["w4a8"] == weights["w4a16"] < weights["w8a8"] == weights["w8a16"] < weights["bf16"]
    assert weights["bf16"] == pytest.approx(2 * value["num_parameters"], rel=0.01)


@pytest.mark.model
def test_a_real_model_in_too_little_memory_is_shown_as_not_fitting(headrace, smollm2_path) -> None:
    result = headrace("fit", smollm2_path, "--memory", "64MiB")
    assert result.exit_code == 0
    assert "does not fit" in result.stdout


def test_a_missing_model_is_reported_in_one_sentence(headrace) -> None:
    result = headrace("fit", "nope")
    assert result.exit_code == 2
    assert "nope" in result.stderr


def test_an_invalid_memory_size_is_refused(headrace, smollm2_path) -> None:
    result = headrace("fit", smollm2_path, "--memory", "lots")
    assert result.exit_code == 2
    assert "16GiB" in result.stderr
