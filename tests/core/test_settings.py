"""Settings: precedence, refusals, and every row of the table of container names."""

import contextlib
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.container_env import ENVIRONMENT, GENERAL_NAMES
from headrace.core.container_meanings import Fills, NoEffect, UsedElsewhere
from headrace.core.container_model_config import MODEL_CONFIG
from headrace.core.container_names import parse_properties, read_container_names
from headrace.core.container_options import OPTIONS, PROPERTIES, VLLM
from headrace.core.errors import SettingsError
from headrace.core.model_folder import parse_model_config
from headrace.core.setting_docs import setting_rows
from headrace.core.setting_rules import format_size, parse_size
from headrace.core.settings import FOREIGN_ENV_NAMES, ServerSettings, env_name, load_settings, setting_names
from headrace.core.settings_sources import gather_settings

MODEL = {"model": "echo"}

EXAMPLES = {
    "model": ("org/name", "org/name"),
    "revision": ("v2", "v2"),
    "served_model_name": ("mine", "mine"),
    "host": ("127.0.0.2", "127.0.0.2"),
    "port": ("9001", 9001),
    "api_key": ("s3cret", "s3cret"),
    "dtype": ("bf16", "bf16"),
    "kv_dtype": ("int8", "int8"),
    "max_model_len": ("4096", 4096),
    "max_prompt_tokens": ("1024", 1024),
    "max_num_seqs": ("16", 16),
    "max_num_batched_tokens": ("512", 512),
    "max_draft_tokens": ("4", 4),
    "rolling_batch": ("auto", "auto"),
    "output_formatter": ("jsonlines", "jsonlines"),
    "tgi_compat": ("true", True),
    "chat_template": ("{{ messages }}", "{{ messages }}"),
    "enable_prefix_caching": ("false", False),
    "max_concurrent_requests": ("7", 7),
    "max_best_of": ("3", 3),
    "max_stop_sequences": ("2", 2),
    "max_top_n_tokens": ("4", 4),
    "default_max_new_tokens": ("100", 100),
    "shutdown_grace_s": ("12", 12.0),
    "cors_allow_origins": ("https://a.example,https://b.example", ("https://a.example", "https://b.example")),
    "cache_dir": ("cache", Path("cache")),
}
SPECIAL = {
    "HF_MODEL_QUANTIZE": ("bitsandbytes-nf4", "w4a8"),
    "QUANTIZE": ("fp8", "w8a8"),
    "quantize": ("smoothquant", "w8a8"),
    "quantization": ("fp8", "w8a8"),
    "speculative_config": ('{"method": "ngram", "num_speculative_tokens": 4}', 4),
    "SAGEMAKER_MAX_PAYLOAD_IN_MB": ("6", 6 * 1024 * 1024),
    "PAYLOAD_LIMIT": ("2000000", 2_000_000),
    "SAGEMAKER_MAX_REQUEST_SIZE": ("1000", 1000),
    "max_request_size": ("1000", 1000),
    "TS_MAX_REQUEST_SIZE": ("1000", 1000),
    "JSON_OUTPUT": ("true", "json"),
    "SAGEMAKER_CONTAINER_LOG_LEVEL": ("10", "debug"),
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
    for key, meaning in VLLM.items():
        yield "env", f"SM_VLLM_{key.upper()}", key, meaning
    for key, meaning in MODEL_CONFIG.items():
        yield "model config", key, key, meaning


def load_one(kind, name, value, **overrides):
    given_here = {name: value}
    env, properties, config = (given_here if kind == one else {} for one in ("env", "properties", "model config"))
    return load_settings(overrides, env, properties, config, container=True)


@pytest.mark.parametrize(
    ("kind", "name", "key", "meaning"), [pytest.param(*row, id=f"{row[0]}-{row[1]}") for row in rows()]
)
def test_every_foreign_name_is_obeyed_or_told_about(kind, name, key, meaning):
    if isinstance(meaning, Fills):
        text, wanted = SPECIAL.get(key) or EXAMPLES[meaning.field]
        settings, notices = load_one(kind, name, text, **({} if meaning.field == "model" else MODEL))
        assert getattr(settings, meaning.field) == wanted
        assert [notice.kind for notice in notices] == ["obeyed"]
    else:
        settings, notices = load_one(kind, name, "surprise", **MODEL)
        assert replace(settings, dialect="tgi-3") == load_settings(MODEL, {}, container=True)[0]
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
def test_of_vllms_ways_to_speculate_n_grams_are_obeyed(config, wanted):
    settings, notices = load_one("properties", "option.speculative_config", config, **MODEL)
    assert settings.max_draft_tokens == wanted
    assert len(notices) == 1


@pytest.mark.parametrize(
    "config", ["ngram", "[]", '{"method": "ngram"}', '{"method": "ngram", "num_speculative_tokens": -1}']
)
def test_a_speculative_config_that_cannot_be_read_stops_the_start(config):
    with pytest.raises(SettingsError, match="speculative_config"):
        load_one("properties", "option.speculative_config", config, **MODEL)


def test_every_field_that_a_name_fills_exists():
    known = {spec.name for spec in fields(ServerSettings)}
    tables = (ENVIRONMENT, OPTIONS, PROPERTIES, VLLM, MODEL_CONFIG)
    meanings = [meaning for table in tables for meaning in table.values()]
    assert {meaning.field for meaning in meanings if isinstance(meaning, Fills)} <= known
    assert set(ENVIRONMENT) >= GENERAL_NAMES


def test_a_quiet_value_is_not_told_about():
    for kind, name, _key, meaning in rows():
        for value in meaning.quiet if isinstance(meaning, NoEffect) else ():
            assert load_one(kind, name, value, **MODEL)[1] == []


def test_the_strongest_source_wins():
    env = {"MAX_TOTAL_TOKENS": "100", "OPTION_MAX_MODEL_LEN": "200"}
    properties = {"option.max_model_len": "300"}
    assert load_settings(MODEL, env)[0].max_model_len == 200
    assert load_settings(MODEL, env, properties)[0].max_model_len == 300
    own = env | {"HEADRACE_MAX_MODEL_LEN": "400"}
    assert load_settings(MODEL, own, properties)[0].max_model_len == 400
    assert load_settings(MODEL | {"max_model_len": 500}, own, properties)[0].max_model_len == 500
    assert load_settings(MODEL, {})[0].max_model_len is None


def test_sagemakers_port_beats_other_names_for_it():
    assert load_settings(MODEL, {"SAGEMAKER_BIND_TO_PORT": "8081", "PORT": "1"}, container=True)[0].port == 8081


def test_a_quantiser_says_more_than_a_dtype():
    env = {"OPTION_DTYPE": "fp16", "OPTION_QUANTIZE": "dynamic_int8"}
    settings, notices = load_settings(MODEL, env)
    assert settings.dtype == "w8a8"
    assert "OPTION_QUANTIZE sets dtype already" in notices[-1].message


def test_the_settings_of_the_llama2_article_work_unchanged():
    env = {
        "HF_MODEL_ID": "meta-llama/Llama-2-7b-chat-hf",
        "SM_NUM_GPUS": "4",
        "MAX_INPUT_LENGTH": "1024",
        "MAX_TOTAL_TOKENS": "2048",
        "MAX_BATCH_TOTAL_TOKENS": "8192",
        "HUGGING_FACE_HUB_TOKEN": "hf_x",
    }
    settings, notices = load_settings({}, env)
    assert (settings.model, settings.max_prompt_tokens, settings.max_model_len) == (
        "meta-llama/Llama-2-7b-chat-hf",
        1024,
        2048,
    )
    assert settings.dialect == "tgi-3"
    assert {notice.name for notice in notices if notice.kind == "ignored"} == {"SM_NUM_GPUS", "MAX_BATCH_TOTAL_TOKENS"}


def test_the_serving_properties_of_the_articles_work_unchanged():
    text = """
    engine=MPI
    option.entryPoint=djl_python.huggingface
    option.tensor_parallel_degree=max
    option.rolling_batch = lmi-dist
    option.max_rolling_batch_size: 32
    option.model_id=TheBloke/Llama-2-7b-chat-fp16
    # a comment
    option.paged_attention=true
    """
    settings, notices = load_settings({}, {}, parse_properties(text))
    assert settings.model == "TheBloke/Llama-2-7b-chat-fp16"
    assert (settings.max_num_seqs, settings.rolling_batch, settings.dialect) == (32, "auto", "lmi-17")
    assert {notice.kind for notice in notices} == {"obeyed"}


def test_the_model_config_of_the_torchserve_article_works_unchanged():
    text = """
    # TorchServe Frontend Parameters
    minWorkers: 1
    maxWorkers: 1
    maxBatchDelay: 100
    responseTimeout: 10800
    batchSize: 16
    # TorchServe Backend Custom Handler Parameters
    handler:
        model_checkpoint_dir: "llama-2-13b-split"
        amp: "bf16"
        tp_degree: 12
        max_length: 100
    micro_batching:
        # Used by batch_size in function LlamaForSampling.from_pretrained
        micro_batch_size: 1
        parallelism:
            preprocess: 2
            inference: 1
            postprocess: 2
    """
    settings, notices = load_settings({}, {"TS_INSTALL_PY_DEP_PER_MODEL": "true"}, {}, parse_model_config(text))
    assert (settings.model, settings.default_max_new_tokens) == ("llama-2-13b-split", 100)
    assert settings.dialect == "torchserve"
    assert {notice.kind for notice in notices} == {"obeyed", "ignored"}
    assert {notice.name for notice in notices} >= {"handler.tp_degree", "micro_batching", "batchSize"}


def test_what_else_a_handler_is_told_is_for_code_that_is_not_run():
    config = {"handler.prompt_prefix": "x", "handler.vllm_engine_config.max_model_len": "64", "minWorker": "1"}
    settings, notices = load_settings(MODEL, {}, {}, config)
    assert settings.max_model_len == 64
    assert {notice.name: notice.kind for notice in notices} == {
        "handler.prompt_prefix": "ignored",
        "handler.vllm_engine_config.max_model_len": "obeyed",
        "minWorker": "unknown",
    }
    assert "Did you mean minWorkers?" in "".join(notice.message for notice in notices)


def test_new_tokens_beat_a_length_in_a_model_config():
    config = {"handler.max_length": "100", "handler.max_new_tokens": "20"}
    assert load_settings(MODEL, {}, {}, config)[0].default_max_new_tokens == 20


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"HEADRACE_PROT": "1"}, "HEADRACE_PROT is not a setting. Did you mean HEADRACE_PORT?"),
        ({"HEADRACE_PORT": "80a"}, "HEADRACE_PORT is '80a'; wanted: a whole number from 0 to 65535."),
        ({"HEADRACE_PORT": "70000"}, "HEADRACE_PORT is '70000'; wanted: a whole number from 0 to 65535."),
        ({"HEADRACE_DTYPE": "w8a"}, "wanted: one of auto, bf16, w8a8, w4a8. Did you mean w8a8?"),
        ({"HEADRACE_SHUTDOWN_GRACE_S": "nan"}, "wanted: a number of seconds from 0 up."),
        ({"HEADRACE_METRICS": "perhaps"}, "HEADRACE_METRICS is 'perhaps'; wanted: true or false."),
        ({"HEADRACE_MAX_BODY_BYTES": "lots"}, "wanted: a size such as 2GiB, 500MB or 1048576."),
        ({"HEADRACE_ROLLING_BATCH": "vllm"}, "wanted: one of auto, native."),
        ({"MAX_INPUT_LENGTH": "-5"}, "MAX_INPUT_LENGTH is '-5' (read as --max-prompt-tokens); wanted: a whole number"),
        ({"OPTION_ROLLING_BATCH": "banana"}, "OPTION_ROLLING_BATCH is 'banana'; wanted: one of auto, native, vllm"),
        ({"SAGEMAKER_MAX_PAYLOAD_IN_MB": "six"}, "wanted: a whole number of megabytes."),
        ({"MAX_INPUT_LENGTH": "64", "MAX_TOTAL_TOKENS": "64"}, "must leave room for at least one token of the answer"),
        ({"HEADRACE_HOST": "0.0.0.0"}, "there is no api_key. Set --api-key"),
    ],
)
def test_a_bad_value_stops_the_start_with_one_sentence(env, sentence):
    with pytest.raises(SettingsError) as caught:
        load_settings(MODEL, env)
    assert sentence in caught.value.message
    assert "\n" not in caught.value.message


def test_no_model_is_refused_with_examples():
    with pytest.raises(SettingsError, match="headrace serve smollm2"):
        load_settings({}, {})


@pytest.mark.parametrize(
    ("env", "properties", "near"),
    [
        ({"OPTION_DTYP": "fp16"}, {}, "OPTION_DTYPE"),
        ({}, {"option.max_rolling_batch_sise": "4"}, "option.max_rolling_batch_size"),
        ({"SM_VLLM_MAX_MODEL_LENGTH": "4"}, {}, "SM_VLLM_MAX_MODEL_LEN"),
        ({"SERVING_JOB_QUEUE_SIZ": "4"}, {}, "SERVING_JOB_QUEUE_SIZE"),
    ],
)
def test_an_unknown_option_is_told_about_with_the_nearest_known_name(env, properties, near):
    (notice,) = load_settings(MODEL, env, properties)[1]
    assert notice.kind == "unknown"
    assert notice.message.endswith(f"Did you mean {near}?")


def test_names_that_mean_other_things_on_a_persons_machine_are_read_in_containers_only():
    env = {"PORT": "3000", "API_KEY": "other", "REVISION": "abc", "HOSTNAME": "box", "DTYPE": "bfloat16"}
    settings, notices = load_settings(MODEL, env)
    assert (settings.port, settings.api_key, settings.revision, notices) == (8080, None, None, [])
    settings, _ = load_settings(MODEL, env, container=True)
    assert (settings.port, settings.api_key, settings.revision, settings.host) == (3000, "other", "abc", "0.0.0.0")


def test_a_container_listens_to_its_network_and_nothing_else_does():
    assert load_settings(MODEL, {})[0].host == "127.0.0.1"
    assert load_settings(MODEL, {}, container=True)[0].host == "0.0.0.0"
    assert load_settings(MODEL, {"HEADRACE_CONTAINER": "true"})[0].host == "0.0.0.0"
    assert load_settings(MODEL, {"HEADRACE_CONTAINER": "false"}, container=True)[0].host == "127.0.0.1"
    assert load_settings(MODEL | {"host": "127.0.0.1"}, {}, container=True)[0].host == "127.0.0.1"


@pytest.mark.parametrize("allowed", [{"api_key": "k"}, {"allow_anonymous": True}])
def test_an_open_address_wants_a_key_or_an_explicit_yes(allowed):
    assert load_settings(MODEL | {"host": "0.0.0.0"} | allowed, {})[0].host == "0.0.0.0"


def test_secrets_never_show():
    settings, notices = load_settings(MODEL, {"API_KEY": "hunter2"}, container=True)
    assert settings.api_key == "hunter2"
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in "".join(notice.message for notice in notices)


def test_an_empty_value_counts_as_not_set():
    settings, notices = load_settings(MODEL, {"HEADRACE_PORT": "", "HF_REVISION": " "})
    assert (settings.port, settings.revision, notices) == (8080, None, [])


def test_a_model_folder_may_say_in_its_properties_what_to_serve(tmp_path):
    (tmp_path / "serving.properties").write_text("option.model_id=org/other\noption.max_model_len=64\n")
    settings, _ = gather_settings({"model": str(tmp_path)}, {})
    assert (settings.model, settings.max_model_len) == ("org/other", 64)


def test_a_model_folder_with_properties_but_no_model_id_is_the_model(tmp_path):
    (tmp_path / "serving.properties").write_text("option.max_model_len=64\n")
    settings, _ = gather_settings({}, {"HEADRACE_MODEL": str(tmp_path)})
    assert (settings.model, settings.max_model_len) == (str(tmp_path), 64)


def test_sagemakers_folder_is_served_when_nothing_is_named(tmp_path):
    settings, _ = gather_settings({}, {}, model_folder=tmp_path)
    assert (settings.model, settings.host, settings.container) == (str(tmp_path), "0.0.0.0", True)
    settings, _ = gather_settings({}, {"HF_MODEL_ID": "org/name"}, model_folder=tmp_path)
    assert (settings.model, settings.host) == ("org/name", "0.0.0.0")
    settings, _ = gather_settings({"model": "smollm2"}, {}, model_folder=tmp_path)
    assert (settings.model, settings.host) == ("smollm2", "127.0.0.1")


def test_properties_that_are_not_text_stop_the_start(tmp_path):
    (tmp_path / "serving.properties").write_bytes(b"option.dtype=\xff\xfe")
    with pytest.raises(SettingsError, match="properties file in UTF-8"):
        gather_settings({"model": str(tmp_path)}, {})


def test_properties_are_read_as_java_reads_them():
    text = "a=1\nb: 2\nc 3\n! no\n  d = x=y \ne=one,\\\n  two\nf\n"
    assert parse_properties(text) == {"a": "1", "b": "2", "c": "3", "d": "x=y", "e": "one,two", "f": ""}


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=5), st.text(max_size=200))
def test_no_environment_and_no_properties_file_break_the_reader(env, text):
    with contextlib.suppress(SettingsError):
        read_container_names(env, parse_properties(text), container=True)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1", 1),
        ("2GiB", 2 << 30),
        ("2g", 2 << 30),
        ("500MB", 500_000_000),
        ("1.5 KiB", 1536),
        ("3T", 3 << 40),
        ("7B", 7),
    ],
)
def test_sizes_are_read_as_people_write_them(text, num_bytes):
    assert parse_size(text) == num_bytes


@given(st.integers(0, 1 << 50))
def test_a_shown_size_reads_back_as_about_the_same(num_bytes):
    assert parse_size(format_size(num_bytes)) == pytest.approx(num_bytes, rel=0.06)


def test_every_setting_has_a_flag_an_env_name_and_a_help_text():
    assert [row.name for row in setting_rows()] == list(setting_names())
    for row in setting_rows():
        assert row.env == env_name(row.name)
        assert row.help.endswith(".")
        assert row.flag.startswith("--")


def test_every_own_env_name_is_read():
    texts = {"dialect": "lmi-17", "isa": "avx2", "max_itl_ms": "50", "kv_cache_bytes": "1GiB", "threads": "2"}
    for row in setting_rows():
        text = texts.get(row.name) or (EXAMPLES[row.name][0] if row.name in EXAMPLES else None)
        if text is None:
            text = {"true": "false", "false": "true"}.get(
                row.default_text, row.rule.choices[0] if row.rule.choices else "3"
            )
        settings, _ = load_settings({} if row.name == "model" else MODEL, {row.env: text})
        assert getattr(settings, row.name) == row.rule.read(text)


@pytest.mark.parametrize("name", sorted(FOREIGN_ENV_NAMES))
def test_a_name_of_ours_that_other_programs_read_does_not_stop_the_start(name):
    settings, notices = load_settings(MODEL, {name: "x"})
    assert settings == load_settings(MODEL, {})[0]
    assert notices == []
