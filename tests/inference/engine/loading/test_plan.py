"""Resolution of limits from the configuration and the model."""

from dataclasses import replace

import pytest

from headrace.core.errors import SettingsError
from headrace.inference.engine.loading.plan import check_threads, resolve_limits
from headrace.inference.models.spec import RopeSpec
from headrace.serving.server.engine_config import engine_config
from headrace.serving.settings.server_settings import ServerSettings
from tests.inference.engine.support import SPEC

CONFIG = engine_config(ServerSettings(model="m"))
LONG = replace(SPEC, max_positions=131_072)


def test_the_default_context_is_the_models_limited_to_8192_tokens() -> None:
    assert resolve_limits(CONFIG, SPEC).max_model_len == SPEC.max_positions
    assert resolve_limits(CONFIG, LONG).max_model_len == 8192
    assert resolve_limits(CONFIG, LONG, max_model_len=100_000).max_model_len == 100_000


def test_a_context_longer_than_the_model_is_refused_unless_rope_grows() -> None:
    with pytest.raises(SettingsError, match="4096"):
        resolve_limits(CONFIG, SPEC, max_model_len=5000)
    dynamic = replace(SPEC, ropes=(RopeSpec(kind="dynamic", factor=2.0),))
    assert resolve_limits(CONFIG, dynamic, max_model_len=5000).max_model_len == 5000


def test_a_prompt_leaves_room_for_one_token() -> None:
    assert resolve_limits(CONFIG, SPEC).max_prompt_tokens == SPEC.max_positions - 1
    assert resolve_limits(replace(CONFIG, max_prompt_tokens=9999), SPEC).max_prompt_tokens == SPEC.max_positions - 1
    assert resolve_limits(replace(CONFIG, max_prompt_tokens=100), SPEC).max_prompt_tokens == 100


def test_every_running_sequence_can_decode_in_one_step() -> None:
    assert resolve_limits(replace(CONFIG, max_num_seqs=1000), SPEC).max_num_batched_tokens == 1000


def test_the_latency_limit_can_be_lifted() -> None:
    assert resolve_limits(replace(CONFIG, max_itl_ms=50), SPEC).max_step_s == 0.05
    assert resolve_limits(replace(CONFIG, max_itl_ms=0), SPEC).max_step_s is None


def test_more_threads_than_cpus_are_refused() -> None:
    check_threads(None, num_cpus=2)
    check_threads(2, num_cpus=2)
    with pytest.raises(SettingsError, match="threads is 3, but this process may use 2 CPUs"):
        check_threads(3, num_cpus=2)


def test_a_negative_context_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="max_model_len is -1; expected at least 2"):
        resolve_limits(CONFIG, SPEC, max_model_len=-1)


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "max_waiting_seqs"])
def test_out_of_range_numbers_are_refused_by_name(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        resolve_limits(replace(CONFIG, **{name: -1}), SPEC)


def test_the_context_of_sparse_attention_ends_where_it_is_dense():
    sparse = replace(LONG, max_positions=64, context_limit="its attention is sparse beyond")

    assert resolve_limits(CONFIG, sparse).max_model_len == 64
    with pytest.raises(SettingsError, match=r"up to 64 positions: its attention is sparse beyond that\. Set it to 64"):
        resolve_limits(CONFIG, sparse, max_model_len=100)
