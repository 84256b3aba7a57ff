"""Flags of AWS's SGLang and llama.cpp containers."""

import pytest

from headrace.serving.settings.loading import load_settings

from .setting_examples import CONTAINER, MODEL, load_one


@pytest.mark.parametrize(
    ("variable", "value", "field", "expected"),
    [
        ("OPTION_MODEL", "org/name", "model", "org/name"),
        ("OPTION_S3URL", "s3://bucket/model/*", "model", "s3://bucket/model/"),
        ("SM_SGLANG_MODEL_PATH", "org/name", "model", "org/name"),
        ("SM_SGLANG_CONTEXT_LENGTH", "4096", "max_model_len", 4096),
        ("SM_SGLANG_MAX_RUNNING_REQUESTS", "7", "max_num_seqs", 7),
        ("SM_SGLANG_DISABLE_RADIX_CACHE", "false", "enable_prefix_caching", True),
        ("SM_SGLANG_CHUNKED_PREFILL_SIZE", "-1", "max_num_batched_tokens", 512),
        ("SM_SGLANG_LORA_PATHS", "a=/tmp/a b=/tmp/b", "adapter", ("a=/tmp/a", "b=/tmp/b")),
        ("SM_SGLANG_QUANTIZATION", "modelopt_fp8", "dtype", "auto"),
        ("SM_LLAMA_CPP_MODEL", "/models/a.gguf", "model", "/models/a.gguf"),
        ("SM_LLAMA_CPP_CTX_SIZE", "0", "max_model_len", None),
        ("SM_LLAMA_CPP_PARALLEL", "4", "max_num_seqs", 4),
        ("SM_LLAMA_CPP_THREADS", "-1", "threads", None),
        ("SM_LLAMA_CPP_POOLING", "rank", "pooling", "auto"),
        ("SM_LLAMA_CPP_ROPE_SCALING", "none", "rope", {"rope_type": "default", "factor": 1.0}),
    ],
)
def test_flags_of_awss_containers_set_what_they_set_there(variable, value, field, expected):
    settings, notices = load_one("env", variable, value, **({} if field == "model" else MODEL))
    assert getattr(settings, field) == expected
    assert not [notice for notice in notices if notice.kind == "unknown"]


def test_the_repository_and_the_file_of_llama_cpp_are_one_model():
    env = {"SM_LLAMA_CPP_HF_REPO": "org/name-GGUF:Q8_0", "SM_LLAMA_CPP_HF_FILE": "name-q8_0.gguf"}
    settings, (notice,) = load_settings(CONTAINER | {"model": None}, env)
    assert settings.model == "org/name-GGUF/name-q8_0.gguf"
    assert (notice.name, notice.kind) == ("SM_LLAMA_CPP_HF_REPO", "applied")
