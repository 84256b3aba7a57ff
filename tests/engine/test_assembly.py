"""What is asked for plus what the model is gives what will be."""

from dataclasses import replace

import pytest

from headrace.core.errors import SettingsError
from headrace.engine.assembly import check_threads, resolve_dtype, resolve_kv_dtype, resolve_limits
from headrace.engine.config import EngineConfig
from headrace.models.spec import RopeSpec
from headrace.models.weights import Encoding
from tests.engine.support import SPEC

CONFIG = EngineConfig(model="m")
LONG = replace(SPEC, max_positions=131_072)


@pytest.mark.parametrize(
    ("encoding", "dtype", "kv_dtype"),
    [
        (Encoding.BF16, "bf16", "bf16"),
        (Encoding.F16, "bf16", "bf16"),
        (Encoding.Q8_0, "w8a8", "int8"),
        (Encoding.Q4_0, "w4a8", "int8"),
        (Encoding.Q4_1, "w4a8", "int8"),
    ],
)
def test_formats_follow_the_checkpoint(encoding: Encoding, dtype: str, kv_dtype: str) -> None:
    assert resolve_dtype("auto", encoding) == dtype
    assert resolve_kv_dtype("auto", dtype) == kv_dtype


def test_formats_are_as_asked() -> None:
    assert resolve_dtype("w8a8", Encoding.BF16) == "w8a8"
    assert resolve_kv_dtype("bf16", "w4a8") == "bf16"


def test_unknown_formats_are_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"fp4.*bf16, w8a8, w4a8"):
        resolve_dtype("fp4", Encoding.BF16)
    with pytest.raises(SettingsError, match=r"fp8.*bf16, int8"):
        resolve_kv_dtype("fp8", "bf16")


def test_the_context_is_the_models_own_up_to_a_default() -> None:
    assert resolve_limits(CONFIG, SPEC).max_model_len == SPEC.max_positions
    assert resolve_limits(CONFIG, LONG).max_model_len == 8192
    assert resolve_limits(replace(CONFIG, max_model_len=100_000), LONG).max_model_len == 100_000


def test_a_context_longer_than_the_model_is_refused_unless_rope_grows() -> None:
    with pytest.raises(SettingsError, match="4096"):
        resolve_limits(replace(CONFIG, max_model_len=5000), SPEC)
    dynamic = replace(SPEC, rope=RopeSpec(kind="dynamic", factor=2.0))
    assert resolve_limits(replace(CONFIG, max_model_len=5000), dynamic).max_model_len == 5000


def test_a_prompt_leaves_room_for_one_token() -> None:
    assert resolve_limits(CONFIG, SPEC).max_prompt_tokens == SPEC.max_positions - 1
    assert resolve_limits(replace(CONFIG, max_prompt_tokens=9999), SPEC).max_prompt_tokens == SPEC.max_positions - 1
    assert resolve_limits(replace(CONFIG, max_prompt_tokens=100), SPEC).max_prompt_tokens == 100


def test_every_running_sequence_can_decode_in_one_step() -> None:
    assert resolve_limits(replace(CONFIG, max_num_seqs=1000), SPEC).max_num_batched_tokens == 1000


def test_the_latency_limit_can_be_lifted() -> None:
    assert resolve_limits(replace(CONFIG, max_itl_ms=50), SPEC).max_step_s == 0.05
    assert resolve_limits(replace(CONFIG, max_itl_ms=None), SPEC).max_step_s is None


def test_more_threads_than_cpus_are_refused() -> None:
    check_threads(None, num_cpus=2)
    check_threads(2, num_cpus=2)
    with pytest.raises(SettingsError, match="threads is 3, but this process may use 2 CPUs"):
        check_threads(3, num_cpus=2)


@pytest.mark.parametrize("name", ["max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_queued_requests"])
def test_senseless_numbers_are_refused_by_name(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        resolve_limits(replace(CONFIG, **{name: -1}), SPEC)
