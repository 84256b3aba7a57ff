"""vLLM's arguments from settings, and the refusals of what it cannot do."""

from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.core.generation import RequestLimits
from headrace.inference.backends.vllm.arguments import (
    HostMemory,
    check_settings,
    engine_arguments,
    kv_bytes_per_token,
    merge_arguments,
)
from headrace.inference.engine.config import EngineConfig, ModelSource
from headrace.inference.engine.loading.plan import ContextLength, limits_within
from headrace.inference.models.model import GenerationDefaults, HfModel
from headrace.serving.settings.loading import load_settings
from tests.inference.models.model_files import byte_level_tokenizer

GIB = 1 << 30
SOURCE = ModelSource(model="tiny")
LLAMA = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
TOKEN_BYTES = 2 * 2 * 2 * 16 * 2


def config(**changes) -> EngineConfig:
    values = {
        "dtype": "auto",
        "kv_dtype": "auto",
        "device": "cpu",
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "enable_prefix_caching": True,
        "max_draft_tokens": 8,
        "max_itl_ms": 0,
        "max_waiting_seqs": 10,
        "request_limits": RequestLimits(max_best_of=4, max_stop_sequences=4, max_top_n_tokens=7),
    }
    return EngineConfig(**{**values, **changes})


def hf_model(**values) -> HfModel:
    tokenizer = byte_level_tokenizer()
    return HfModel(
        name="tiny",
        path=Path("/models/tiny"),
        revision=None,
        config={**LLAMA, **values},
        vocab_size=320,
        max_positions=128,
        tokenizer=tokenizer,
        chat_template=None,
        defaults=GenerationDefaults(),
    )


ROOMY = HostMemory(available_bytes=64 * GIB, weights_bytes=GIB)


def arguments(memory=ROOMY, model=None, **changes):
    settings = config(**changes)
    limits = limits_within(settings, ContextLength(default=128, longest=128))
    return engine_arguments(SOURCE, settings, model or hf_model(), limits, memory)


def test_settings_become_arguments_of_vllm() -> None:
    made = arguments(dtype="bf16", tensor_parallel_size=2, enforce_eager=True, max_loras=3, max_lora_rank=20)
    expected = {
        "model": "/models/tiny",
        "served_model_name": "tiny",
        "dtype": "bfloat16",
        "max_model_len": 128,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "tensor_parallel_size": 2,
        "enforce_eager": True,
        "enable_lora": True,
        "max_loras": 3,
        "max_cpu_loras": 3,
        "max_lora_rank": 32,
        "max_logprobs": 7,
    }
    assert {name: made[name] for name in expected} == expected


def test_on_a_cpu_the_kv_cache_holds_all_contexts_or_what_fits() -> None:
    whole = 8 * 128 * TOKEN_BYTES
    assert arguments()["kv_cache_memory_bytes"] == whole
    assert arguments(tensor_parallel_size=2)["kv_cache_memory_bytes"] == whole // 2
    assert arguments(max_kv_cache_tokens=256)["kv_cache_memory_bytes"] == 256 * TOKEN_BYTES
    assert arguments(kv_cache_bytes=12345)["kv_cache_memory_bytes"] == 12345
    short = HostMemory(available_bytes=4 * GIB, weights_bytes=4 * GIB)
    assert arguments(short)["kv_cache_memory_bytes"] == 0
    assert "gpu_memory_utilization" not in arguments()


def test_on_a_gpu_vllm_measures_the_memory() -> None:
    made = arguments(None, gpu_memory_utilization=0.5)
    assert made["gpu_memory_utilization"] == 0.5
    assert "kv_cache_memory_bytes" not in made


def test_the_size_of_a_token_needs_the_heads() -> None:
    assert kv_bytes_per_token(hf_model()) == TOKEN_BYTES
    assert kv_bytes_per_token(hf_model(head_dim=32)) == 2 * TOKEN_BYTES
    unknown = hf_model(num_attention_heads="many")
    assert kv_bytes_per_token(unknown) is None
    with pytest.raises(SettingsError, match="Set kv_cache_bytes instead"):
        arguments(model=unknown, max_kv_cache_tokens=100)


def test_a_rope_setting_is_merged_into_the_checkpoints() -> None:
    settings = config()
    source = ModelSource(model="tiny", rope={"rope_type": "yarn", "factor": 2.0})
    limits = limits_within(settings, ContextLength(default=128, longest=None))
    model = hf_model(rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    made = engine_arguments(source, settings, model, limits, None)
    rope = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 2.0}
    assert made["hf_overrides"] == {"rope_parameters": rope}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"dtype": "w8a8"}, "dtype"),
        ({"kv_dtype": "int8"}, "kv_dtype"),
        ({"batch_invariant": True}, "batch_invariant"),
        ({"max_lora_rank": 513}, "max_lora_rank"),
    ],
)
def test_a_setting_that_vllm_cannot_apply_is_refused_by_name(changes: dict[str, object], name: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name} is .*(expected|GPUs only)"):
        check_settings(SOURCE, config(**changes))


def test_a_container_that_asks_for_weights_of_8_bits_is_told_what_vllm_has_instead() -> None:
    settings, _ = load_settings({"model": "m"}, {"OPTION_QUANTIZE": "dynamic_int8"})
    with pytest.raises(SettingsError, match=r"dtype is 'w8a8'; .*dynamic_int8.*quantization in vllm_args"):
        check_settings(SOURCE, config(dtype=settings.dtype))


def test_embeddings_are_refused() -> None:
    with pytest.raises(SettingsError, match="generates text only"):
        check_settings(ModelSource(model="tiny", task="embed"), config())


NAMES = {"kv_cache_dtype", "max_model_len", "swap_space", "speculative_config", "quantization", "enforce_eager"}


def test_vllm_args_win_in_any_spelling_and_text_is_read() -> None:
    given = {"--kv-cache-dtype": "fp8", "max_model_len": "64", "enforce_eager": "true", "speculative_config": "{}"}
    merged = merge_arguments({"max_model_len": 128, "model": "m"}, given, NAMES)
    expected = {"max_model_len": 64, "kv_cache_dtype": "fp8", "enforce_eager": True, "speculative_config": {}}
    assert merged == {"model": "m", **expected}


def test_an_unknown_argument_is_refused_with_near_names() -> None:
    with pytest.raises(SettingsError, match=r"quantizations.*Did you mean quantization"):
        merge_arguments({}, {"quantizations": "awq"}, NAMES)
    with pytest.raises(SettingsError, match="has zzz; expected names"):
        merge_arguments({}, {"zzz": 1}, NAMES)


def test_an_argument_that_the_text_depends_on_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"logprobs-mode.*always raw_logprobs"):
        merge_arguments({}, {"logprobs-mode": "processed_logits"}, NAMES)
