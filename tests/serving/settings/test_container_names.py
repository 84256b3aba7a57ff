"""The names of other containers: every row of the tables, and the articles' own settings."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from headrace.core.engine_names import BACKENDS, ENGINES, OTHER_SPELLINGS
from headrace.core.errors import SettingsError
from headrace.serving.settings.container_meanings import (
    Fills,
    FillsPart,
    ForBackends,
    NoEffect,
    OnGpu,
    Requires,
    UsedElsewhere,
    parts_of,
)
from headrace.serving.settings.container_tables import (
    ENVIRONMENT,
    FLAGS,
    GENERAL_NAMES,
    MODEL_CONFIG,
    OPTIONS,
    PROPERTIES,
)
from headrace.serving.settings.loading import load_settings
from headrace.serving.settings.server_settings import ServerSettings
from tests.tables import check_rows

from .setting_examples import CONTAINER, EXAMPLES, MODEL, load_one

SPECIAL = {
    "HF_MODEL_QUANTIZE": ("bitsandbytes-nf4", "w4a8"),
    "QUANTIZE": ("fp8", "w8a8"),
    "runner": ("pooling", "embed"),
    "convert": ("classify", "score"),
    "HF_TASK": ("feature-extraction", "features"),
    "POOLING": ("last-token", "last"),
    "quantize": ("smoothquant", "smoothquant"),
    "quantization": ("fp8", "w8a8"),
    "speculative_config": ('{"method": "ngram", "num_speculative_tokens": 4}', 4),
    "SAGEMAKER_MAX_PAYLOAD_IN_MB": ("6", 6 * 1024 * 1024),
    "PAYLOAD_LIMIT": ("2000000", 2_000_000),
    "SAGEMAKER_MAX_REQUEST_SIZE": ("1000", 1000),
    "max_request_size": ("1000", 1000),
    "TS_MAX_REQUEST_SIZE": ("1000", 1000),
    "MMS_MAX_REQUEST_SIZE": ("1000", 1000),
    "CUDA_GRAPHS": ("0", True),
    "LMCACHE_MAX_LOCAL_DISK_SIZE": ("2.5", 5 << 29),
    "JSON_OUTPUT": ("true", "json"),
    "SAGEMAKER_CONTAINER_LOG_LEVEL": ("10", "debug"),
    "rope_scaling": ('{"type": "dynamic", "factor": 2}', {"rope_type": "dynamic", "factor": 2}),
    "rope_scaling_type": ("dynamic", {"rope_type": "dynamic", "factor": 1.0}),
    "rope_scaling_factor": ("2.5", {"rope_type": "linear", "factor": 2.5}),
    "rope_theta": ("1e6", {"rope_theta": 1e6}),
    "hf_overrides": ('{"rope_parameters": {"factor": 8}, "rope_theta": 5}', {"factor": 8, "rope_theta": 5}),
    "ROPE_SCALING": ("linear", {"rope_type": "linear", "factor": 1.0}),
    "ROPE_FACTOR": ("4", {"rope_type": "linear", "factor": 4.0}),
    "SM_SGLANG_quantization": ("fp8", "w8a8"),
    "SM_SGLANG_is_embedding": ("true", "embed"),
    "SM_SGLANG_device": ("cpu", "cpu"),
    "SM_SGLANG_log_level": ("WARN", "warning"),
    "SM_SGLANG_sampling_defaults": ("openai", "vllm"),
    "SM_SGLANG_disable_radix_cache": ("true", False),
    "SM_SGLANG_json_model_override_args": ('{"rope_scaling": {"type": "yarn"}}', {"rope_type": "yarn"}),
    "SM_LLAMA_CPP_ctx_size": ("4096", 4096),
    "SM_LLAMA_CPP_cache_type_k": ("q8_0", "int8"),
    "SM_LLAMA_CPP_cache_type_v": ("q4_0", "int8"),
    **{f"SM_LLAMA_CPP_{name}": ("true", "embed") for name in ("embedding", "embeddings")},
    **{f"SM_LLAMA_CPP_{name}": ("true", "score") for name in ("reranking", "rerank")},
    "SM_LLAMA_CPP_rope_scaling": ("linear", {"rope_type": "linear", "factor": 1.0}),
    "SM_LLAMA_CPP_rope_scale": ("4", {"rope_type": "linear", "factor": 4.0}),
    "SM_LLAMA_CPP_rope_freq_base": ("1e6", {"rope_theta": 1e6}),
    "SM_LLAMA_CPP_yarn_orig_ctx": ("2048", {"original_max_position_embeddings": 2048}),
    **{f"SM_LLAMA_CPP_{name}": ("0", "cpu") for name in ("n_gpu_layers", "gpu_layers")},
    "SM_LLAMA_CPP_no_cache_prompt": ("true", False),
    **{f"SM_LLAMA_CPP_{name}": ("true", False) for name in ("no_webui", "no_ui")},
    **{f"SM_LLAMA_CPP_{name}": ("false", False) for name in ("webui", "ui")},
    "SM_LLAMA_CPP_verbose": ("true", "debug"),
    "SM_LLAMA_CPP_log_jsonl": ("true", "json"),
}

VLLM_ARGUMENTS = {
    "cpu_offload_gb_per_gpu": {"cpu_offload_gb": 5},
    "pipeline_parallel_degree": {"pipeline_parallel_size": 5},
    "speculative_draft_model": {"speculative_config": {"model": 5}},
    "speculative_length": {"speculative_config": {"num_speculative_tokens": 5}},
    "draft_model_tp_size": {"speculative_config": {"draft_tensor_parallel_size": 5}},
    "sm_sglang_page_size": {"block_size": 5},
    "sm_sglang_random_seed": {"seed": 5},
    "sm_sglang_cpu_offload_gb": {"cpu_offload_gb": 5},
    "sm_sglang_model_impl": {"model_impl": 5},
    "sm_sglang_load_format": {"load_format": 5},
    **{f"sm_sglang_{name}": {"pipeline_parallel_size": 5} for name in ("pp", "pp_size", "pipeline_parallel_size")},
    "sm_llama_cpp_seed": {"seed": 5},
}


def rows():
    """Each foreign name as (kind, how it is given, its key in the table, its meaning)."""
    for name, meaning in ENVIRONMENT.items():
        yield "env", name, name, meaning
    for key, meaning in OPTIONS.items():
        yield "properties", f"option.{key}", key, meaning
        yield "env", f"OPTION_{key.upper()}", key, meaning
    for key, meaning in PROPERTIES.items():
        yield "properties", key, key, meaning
        if f"SERVING_{key.upper()}" not in ENVIRONMENT:
            yield "env", f"SERVING_{key.upper()}", key, meaning
    for prefix, flags in FLAGS.items():
        for key, meaning in flags.items():
            yield "env", f"{prefix}{key.upper()}", key if prefix == "SM_VLLM_" else f"{prefix}{key}", meaning
    for key, meaning in MODEL_CONFIG.items():
        yield "model config", key, key, meaning


def given_on(meaning, *, on_gpu):
    """The meaning of a name on a host with or without a GPU."""
    return (meaning.gpu if on_gpu else meaning.cpu) if isinstance(meaning, OnGpu) else meaning


@pytest.mark.parametrize("on_gpu", [False, True])
def test_every_foreign_name_is_applied_or_gets_a_notice(on_gpu):
    table = ((f"{kind} {name}", (kind, name, *others, on_gpu)) for kind, name, *others in rows())
    check_rows(table, check_name)


def check_name(kind, name, key, meaning, on_gpu):
    meaning = given_on(meaning, on_gpu=on_gpu)
    if isinstance(meaning, ForBackends):
        check_name_for_backends(kind, name, key, meaning, on_gpu=on_gpu)
    elif isinstance(meaning, Fills | FillsPart):
        text, wanted = SPECIAL.get(key) or EXAMPLES[meaning.field]
        overrides = {} if meaning.field == "model" else MODEL
        overrides = overrides | {"dtype": "smoothquant"} if meaning.field == "smoothquant_alpha" else overrides
        settings, notices = load_one(kind, name, text, on_gpu=on_gpu, **overrides)
        assert getattr(settings, meaning.field) == wanted
        for backend in BACKENDS:
            assert [notice.kind for notice in served_by(backend, notices)] == ["applied"]
    elif isinstance(meaning, Requires):
        with pytest.raises(SettingsError) as refused:
            load_one(kind, name, "surprise", **MODEL)
        expected = "one of " * (len(meaning.values) > 1) + meaning.values[0]
        assert refused.value.message.startswith(f"{name} is 'surprise'; expected {expected}")
        assert [load_one(kind, name, value.upper(), **MODEL)[1] for value in meaning.values] == [[]] * len(
            meaning.values
        )
    else:
        settings, notices = load_one(kind, name, "surprise", **MODEL)
        assert replace(settings, dialect="tgi-3") == load_settings(CONTAINER, {})[0]
        kinds = [] if isinstance(meaning, UsedElsewhere) else ["ignored"]
        assert [notice.kind for notice in notices] == kinds
        assert all(name in notice.message for notice in notices)


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ('{"model": "[ngram]", "num_speculative_tokens": 3, "prompt_lookup_max": 4}', 3),
        (
            '{"method": "eagle3", "model": "someone/draft", "num_speculative_tokens": 3}',
            ServerSettings().max_draft_tokens,
        ),
    ],
)
def test_only_ngram_of_vllms_speculative_methods_is_applied(config, wanted):
    settings, notices = load_one("properties", "option.speculative_config", config, **MODEL)
    assert settings.max_draft_tokens == wanted
    assert len(served_by("native", notices)) == len(served_by("vllm", notices)) == 1
    assert settings.vllm_args == {"speculative_config": json.loads(config)}


@pytest.mark.parametrize(
    "config", ["ngram", "[]", '{"method": "ngram"}', '{"method": "ngram", "num_speculative_tokens": -1}']
)
def test_a_speculative_config_that_cannot_be_read_stops_the_start(config):
    with pytest.raises(SettingsError, match="speculative_config"):
        load_one("properties", "option.speculative_config", config, **MODEL)


def served_by(backend, notices):
    return [notice for notice in notices if backend in notice.backends or not notice.backends]


def check_name_for_backends(kind, name, key, meaning, *, on_gpu):
    """The name is applied if one of its backends serves, and its notice says why not otherwise."""
    inner = meaning.meaning
    argument = ("5", VLLM_ARGUMENTS.get(key.lower(), {key.lower(): 5}))
    text, wanted = argument if inner.field == "vllm_args" else SPECIAL.get(key) or EXAMPLES[inner.field]
    settings, notices = load_one(kind, name, text, on_gpu=on_gpu, **MODEL)
    assert getattr(settings, inner.field) == wanted
    for backend in BACKENDS:
        (notice,) = served_by(backend, notices) or [None]
        if backend in meaning.backends:
            assert notice.kind == "applied"
        elif text.lower() in meaning.otherwise.quiet:
            assert notice is None
        else:
            assert (notice.kind, notice.message) == ("ignored", f"{name} has no effect: {meaning.otherwise.why}.")


def test_every_field_that_a_name_sets_exists():
    known = {spec.name for spec in fields(ServerSettings)}
    tables = (ENVIRONMENT, OPTIONS, PROPERTIES, MODEL_CONFIG, *FLAGS.values())
    meanings = [meaning for table in tables for meaning in table.values()]
    assert {part.field for meaning in meanings for part in parts_of(meaning)} <= known
    assert set(ENVIRONMENT) >= GENERAL_NAMES


def test_a_value_that_asks_for_the_default_gets_no_notice():
    for kind, name, _key, meaning in rows():
        here = given_on(meaning, on_gpu=False)
        for value in here.quiet if isinstance(here, NoEffect) else ():
            assert load_one(kind, name, value, **MODEL)[1] == []


def test_sagemakers_port_takes_precedence_over_other_names_for_it():
    assert load_settings(CONTAINER, {"SAGEMAKER_BIND_TO_PORT": "8081", "PORT": "1"})[0].port == 8081


def test_the_disk_of_lmcache_and_sglang_is_that_of_the_prefix_cache():
    settings, notices = load_settings(
        MODEL,
        {"LMCACHE_LOCAL_DISK": "file:///tmp/kv/", "LMCACHE_MAX_LOCAL_DISK_SIZE": "5.0", "LMCACHE_CHUNK_SIZE": "256"},
    )
    assert (settings.prefix_cache_dir, settings.prefix_cache_disk_bytes) == (Path("/tmp/kv"), 5 << 30)
    assert any("LMCACHE_CHUNK_SIZE has no effect" in notice.message for notice in notices)
    settings, _ = load_settings(MODEL, {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": "/tmp/hicache"})
    assert settings.prefix_cache_dir == Path("/tmp/hicache")


def test_a_quantization_method_takes_precedence_over_a_dtype():
    env = {"OPTION_DTYPE": "fp16", "OPTION_QUANTIZE": "dynamic_int8"}
    settings, notices = load_settings(MODEL, env)
    assert settings.dtype == "w8a8"
    assert "OPTION_QUANTIZE sets dtype already" in notices[-1].message


def test_lmis_smoothquant_is_applied_with_its_strength():
    properties = {
        "option.quantize": "smoothquant",
        "option.smoothquant_alpha": "0.8",
        "option.smoothquant_per_token": "True",
        "option.smoothquant_per_channel": "True",
    }
    settings, notices = load_settings(MODEL, {}, properties)
    assert (settings.dtype, settings.smoothquant_alpha) == ("smoothquant", 0.8)
    assert {notice.kind for notice in notices} == {"applied"}


@pytest.mark.parametrize("part", ["token", "channel"])
def test_a_coarser_smoothquant_is_refused_by_name(part):
    properties = {"option.quantize": "smoothquant", f"option.smoothquant_per_{part}": "false"}
    with pytest.raises(SettingsError, match=rf"^option\.smoothquant_per_{part} is 'false'; expected true\."):
        load_settings(MODEL, {}, properties)


def test_a_strength_without_smoothquant_gets_a_notice():
    notices = load_settings(MODEL, {"OPTION_QUANTIZE": "fp8", "OPTION_SMOOTHQUANT_ALPHA": "0.5"})[1]
    assert notices[-1].message.startswith("OPTION_SMOOTHQUANT_ALPHA has no effect: it is for dtype smoothquant")


def test_max_new_tokens_takes_precedence_over_max_length_in_a_model_config():
    config = {"handler.max_length": "100", "handler.max_new_tokens": "20"}
    assert load_settings(MODEL, {}, {}, config)[0].default_max_new_tokens == 20


def test_older_and_newer_names_of_the_model_in_properties():
    for key in ("option.s3url", "option.model", "option.model_id"):
        settings, _ = load_one("properties", key, "s3://bucket/x/")
        assert settings.model == "s3://bucket/x/"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        *((name, name) for name in ENGINES if name != "auto"),
        *OTHER_SPELLINGS.items(),
        *[("Disabled", "disable"), ("vLLM", "vllm"), ("lmi_dist", "lmi-dist"), (" TensorRT_LLM ", "trtllm")],
    ],
)
@pytest.mark.parametrize("form", ["environment", "properties"])
def test_every_rolling_batch_value_of_lmi_is_accepted(form, value, name):
    sources = {"OPTION_ROLLING_BATCH": value}, {"option.rolling_batch": value}
    env, properties = (sources[0], {}) if form == "environment" else ({}, sources[1])
    settings, (notice,) = load_settings(MODEL, env, properties)
    assert settings.rolling_batch == name
    assert settings.backend == "auto"
    assert settings.max_num_seqs == ServerSettings().max_num_seqs
    assert notice.kind == "applied"
    assert ("max_num_seqs=1 runs one at a time" in notice.message) == (name == "disable")


def test_a_batch_total_below_one_context_stops_the_start_with_both_names():
    with pytest.raises(SettingsError, match="expected room for at least one whole context") as refused:
        load_settings(MODEL, {"MAX_TOTAL_TOKENS": "4096", "MAX_BATCH_TOTAL_TOKENS": "2048"})
    assert "max_model_len is 4096 (MAX_TOTAL_TOKENS)" in refused.value.message
    assert "max_kv_cache_tokens is 2048 (MAX_BATCH_TOTAL_TOKENS)" in refused.value.message


def test_neuron_variables_get_a_notice():
    env = {"NEURON_RT_NUM_CORES": "24", "NEURON_CC_FLAGS": "--model-type=transformer", "NEURONX_CACHE": "on"}
    settings, notices = load_settings(MODEL, {**env, "OPTION_N_POSITIONS": "2048"})
    assert settings.max_model_len == 2048
    ignored = {notice.name: notice.message for notice in notices if notice.kind == "ignored"}
    assert set(ignored) == set(env)
    assert all("no Neuron device or compiler is used" in message for message in ignored.values())


@pytest.mark.parametrize(
    ("env", "properties"),
    [
        ({}, {"option.entryPoint": "djl_python.stable-diffusion"}),
        ({}, {"option.entryPoint": "djl_python.sentence_embedding"}),
        ({}, {"option.entryPoint": "model.py"}),
        ({"OPTION_ENTRYPOINT": "https://example.com/model.py"}, {}),
        ({"DJL_ENTRY_POINT": "handler.py"}, {}),
        ({"HF_TASK": "image-classification"}, {}),
        ({"OPTION_TASK": "transcription"}, {}),
    ],
)
def test_tasks_that_are_not_served_are_refused_by_name(env, properties):
    ((name, value),) = (env or properties).items()
    with pytest.raises(SettingsError) as refused:
        load_settings(MODEL, env, properties)
    assert refused.value.message.startswith(f"{name} is {value!r}; expected one of ")


def test_general_names_are_read_only_in_containers():
    env = {"PORT": "3000", "API_KEY": "other", "REVISION": "abc", "HOSTNAME": "box", "DTYPE": "bfloat16"}
    settings, notices = load_settings(MODEL, env)
    assert (settings.port, settings.api_key, settings.revision, notices) == (8080, None, None, [])
    settings, _ = load_settings(CONTAINER, env)
    assert (settings.port, settings.api_key, settings.revision, settings.host) == (3000, "other", "abc", "0.0.0.0")


@pytest.mark.parametrize(
    ("env", "overrides", "dialect"),
    [
        ({"HF_TASK": "text-classification"}, {}, "hf-toolkit"),
        ({"HF_TASK": "sentiment-analysis"}, {}, "hf-toolkit"),
        ({"HF_TASK": "feature-extraction"}, {}, "hf-toolkit"),
        ({"HF_TASK": "text-classification"}, {"dialect": "tei"}, "tei"),
        ({"HF_TASK": "text-generation"}, {}, "tgi-3"),
        ({"HF_TASK": "sentence-similarity"}, {}, "tgi-3"),
        ({"OPTION_TASK": "text_embedding"}, {}, "lmi-17"),
        ({}, {"task": "score"}, "tgi-3"),
    ],
)
def test_the_task_of_the_toolkit_chooses_its_form(env, overrides, dialect):
    settings, _ = load_settings({"model": "m", **overrides}, env)
    assert settings.dialect == dialect
