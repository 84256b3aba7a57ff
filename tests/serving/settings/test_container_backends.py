"""Names of other containers whose effect depends on the backend or on a GPU."""

import pytest

from headrace.serving.settings.loading import load_settings

from .setting_examples import MODEL
from .test_container_names import served_by


def test_a_gpu_runs_16_bit_floats_as_they_are_and_a_cpu_as_bf16():
    env = {"OPTION_DTYPE": "fp16"}
    assert load_settings(MODEL, env, on_gpu=True)[0].dtype == "fp16"
    assert load_settings(MODEL | {"device": "cpu"}, env, on_gpu=True)[0].dtype == "bf16"
    assert load_settings(MODEL, env)[0].dtype == "bf16"


@pytest.mark.parametrize(("degree", "wanted"), [("max", 0), ("auto", 0), ("all", 0), ("4", 4)])
@pytest.mark.parametrize("name", ["OPTION_TENSOR_PARALLEL_DEGREE", "SM_NUM_GPUS", "SM_VLLM_TENSOR_PARALLEL_SIZE"])
def test_a_degree_of_parallelism_counts_gpus(name, degree, wanted):
    assert load_settings(MODEL, {name: degree}, on_gpu=True)[0].tensor_parallel_size == wanted
    assert load_settings(MODEL, {name: degree})[0].tensor_parallel_size is None


def test_names_of_vllms_arguments_are_merged_and_apply_only_if_vllm_serves():
    env = {
        "OPTION_SPECULATIVE_DRAFT_MODEL": "org/draft",
        "OPTION_SPECULATIVE_LENGTH": "3",
        "OPTION_QUANTIZE": "awq",
        "SM_VLLM_ENABLE_EXPERT_PARALLEL": "True",
        "SM_VLLM_KV_CACHE_DTYPE": "fp8",
    }
    settings, notices = load_settings(MODEL, env)
    assert settings.vllm_args == {
        "speculative_config": {"model": "org/draft", "num_speculative_tokens": 3},
        "quantization": "awq",
        "enable_expert_parallel": True,
        "kv_cache_dtype": "fp8",
    }
    assert settings.kv_dtype == "int8"
    assert {notice.kind for notice in served_by("vllm", notices)} == {"applied"}
    kinds = {notice.name: notice.kind for notice in served_by("native", notices)}
    assert kinds == {**dict.fromkeys(env, "ignored"), "SM_VLLM_KV_CACHE_DTYPE": "applied"}


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("SPECULATE", "3", {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}),
        ("SPECULATE", "0", None),
    ],
)
def test_tgis_speculation_is_prompt_lookup_in_vllm(name, value, wanted):
    settings, _ = load_settings(MODEL, {name: value})
    assert settings.max_draft_tokens == int(value)
    assert (settings.vllm_args or {}).get("speculative_config") == wanted


@pytest.mark.parametrize(("graphs", "is_eager"), [("0", True), ("1,2,4", False)])
def test_tgis_cuda_graphs_can_be_turned_off(graphs, is_eager):
    assert load_settings(MODEL, {"CUDA_GRAPHS": graphs}, on_gpu=True)[0].enforce_eager is is_eager


def test_the_flow_of_the_phi3_article_asks_for_vllm_and_gets_what_is_installed():
    env = {
        "HF_MODEL_ID": "microsoft/Phi-3-mini-4k-instruct",
        "OPTION_ROLLING_BATCH": "vllm",
        "OPTION_MAX_ROLLING_BATCH_SIZE": "32",
        "OPTION_TRUST_REMOTE_CODE": "true",
        "OPTION_DTYPE": "fp16",
        "TENSOR_PARALLEL_DEGREE": "max",
    }
    settings, notices = load_settings({"container": "true"}, env)
    assert (settings.backend, settings.rolling_batch, settings.max_num_seqs) == ("auto", "vllm", 32)
    assert settings.trust_remote_code
    ignored = {notice.name for notice in served_by("native", notices) if notice.kind == "ignored"}
    assert ignored == {"OPTION_TRUST_REMOTE_CODE"}
    assert all(notice.kind == "applied" for notice in served_by("vllm", notices))
