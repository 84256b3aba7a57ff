"""Settings: precedence, refusals, and their own names."""

import pytest

from headrace.core.errors import SettingsError
from headrace.serving.settings.docs import setting_rows
from headrace.serving.settings.loading import FOREIGN_ENV_NAMES, load_settings
from headrace.serving.settings.rules import split_address
from headrace.serving.settings.server_settings import setting_names
from headrace.serving.settings.shutdown import resolve_shutdown_delay
from headrace.serving.settings.values import env_name

from .setting_examples import CONTAINER, EXAMPLES, MODEL


def test_sources_are_applied_in_order_of_precedence():
    env = {"MAX_TOTAL_TOKENS": "100", "OPTION_MAX_MODEL_LEN": "200"}
    properties = {"option.max_model_len": "300"}
    assert load_settings(MODEL, env)[0].max_model_len == 200
    assert load_settings(MODEL, env, properties)[0].max_model_len == 300
    own = env | {"HEADRACE_MAX_MODEL_LEN": "400"}
    assert load_settings(MODEL, own, properties)[0].max_model_len == 400
    assert load_settings(MODEL | {"max_model_len": 500}, own, properties)[0].max_model_len == 500
    assert load_settings(MODEL, {})[0].max_model_len is None


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"HEADRACE_PROT": "1"}, "HEADRACE_PROT is not a setting. Did you mean HEADRACE_PORT?"),
        ({"HEADRACE_PORT": "80a"}, "HEADRACE_PORT is '80a'; expected a whole number from 0 to 65535."),
        ({"HEADRACE_PORT": "70000"}, "HEADRACE_PORT is '70000'; expected a whole number from 0 to 65535."),
        (
            {"HEADRACE_DTYPE": "w8a"},
            "expected one of auto, bf16, fp16, fp32, fp8, w8a16, w8a8, w4a16, w4a8, smoothquant. Did you mean w8a8?",
        ),
        ({"HEADRACE_SHUTDOWN_GRACE_S": "nan"}, "expected a number of seconds from 0 up."),
        ({"HEADRACE_METRICS": "perhaps"}, "HEADRACE_METRICS is 'perhaps'; expected true or false."),
        ({"HEADRACE_MAX_BODY_BYTES": "lots"}, "expected a size such as 2GiB, 500MB or 1048576."),
        ({"HEADRACE_ROLLING_BATCH": "sglang"}, "expected one of auto, native, torch, transformers, vllm, lmi-dist"),
        ({"MAX_INPUT_LENGTH": "-5"}, "MAX_INPUT_LENGTH is '-5' (read as --max-prompt-tokens); expected a whole number"),
        ({"OPTION_ROLLING_BATCH": "banana"}, "OPTION_ROLLING_BATCH is 'banana'; expected one of auto, native, torch"),
        ({"SAGEMAKER_MAX_PAYLOAD_IN_MB": "six"}, "expected a whole number of megabytes."),
        ({"MAX_INPUT_LENGTH": "64", "MAX_TOTAL_TOKENS": "64"}, "must leave room for at least one token of the answer"),
        (
            {"HEADRACE_ALLOWED_HOSTS": "devbox:8080"},
            "expected host names such as devbox or *.example.com, without a port.",
        ),
        ({"HEADRACE_ALLOWED_HOSTS": "a.*.example"}, "expected host names such as devbox or *.example.com"),
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


def test_only_a_container_listens_on_all_addresses_by_default():
    assert load_settings(MODEL, {})[0].host == "127.0.0.1"
    assert load_settings(CONTAINER, {})[0].host == "0.0.0.0"
    assert load_settings(MODEL, {"HEADRACE_CONTAINER": "true"})[0].host == "0.0.0.0"
    assert load_settings(MODEL, {"HEADRACE_CONTAINER": "false"})[0].host == "127.0.0.1"
    assert load_settings(CONTAINER | {"host": "127.0.0.1"}, {})[0].host == "127.0.0.1"


@pytest.mark.parametrize("name", ["management_address", "metrics_address"])
def test_apis_of_torchserve_on_an_open_address_require_a_key(name):
    open_address = {name: "http://0.0.0.0:8081"}
    with pytest.raises(SettingsError, match=f"{name} is http://0.0.0.0:8081, which others on the network can reach"):
        load_settings({**MODEL, **open_address, "container": "true", "allow_anonymous": "true"}, {})
    settings, _ = load_settings({**MODEL, **open_address, "api_key": "k"}, {})
    assert split_address(getattr(settings, name)) == ("0.0.0.0", 8081)


@pytest.mark.parametrize(
    "raw", ["https://127.0.0.1:8081", "127.0.0.1", "http://a:b", "http://u@a:1", "http://a:1/x", ":80"]
)
def test_an_address_has_a_host_and_a_port(raw):
    with pytest.raises(SettingsError, match="expected off, or an address such as http://"):
        load_settings({**MODEL, "management_address": raw}, {})


@pytest.mark.parametrize("allowed", [{"api_key": "k"}, {"allow_anonymous": True}])
def test_an_open_address_requires_a_key_or_allow_anonymous(allowed):
    assert load_settings(MODEL | {"host": "0.0.0.0"} | allowed, {})[0].host == "0.0.0.0"


def test_a_delay_longer_than_the_grace_period_is_refused():
    with pytest.raises(SettingsError, match=r"shutdown_delay_s is 30 and shutdown_grace_s is 25; expected at most"):
        load_settings({"model": "m", "shutdown_delay_s": 30}, {})


@pytest.mark.parametrize(
    ("delay_s", "grace_s", "host", "expected_s"),
    [(None, 25, "127.0.0.1", 0), (None, 25, "0.0.0.0", 5), (None, 2, "0.0.0.0", 2), (3, 25, "127.0.0.1", 3)],
)
def test_only_a_reachable_server_has_a_shutdown_delay_by_default(delay_s, grace_s, host, expected_s):
    assert resolve_shutdown_delay(delay_s, grace_s=grace_s, host=host) == expected_s


def test_secrets_are_never_shown():
    settings, notices = load_settings(CONTAINER, {"API_KEY": "hunter2"})
    assert settings.api_key == "hunter2"
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in "".join(notice.message for notice in notices)


def test_an_empty_value_counts_as_not_set():
    settings, notices = load_settings(MODEL, {"HEADRACE_PORT": "", "HF_REVISION": " "})
    assert (settings.port, settings.revision, notices) == (8080, None, [])


def test_every_setting_has_a_flag_an_env_name_and_a_help_text():
    assert sorted(row.name for row in setting_rows()) == sorted(setting_names())
    for row in setting_rows():
        assert row.env == env_name(row.name)
        assert row.help.endswith(".")
        assert row.flag.startswith("--")


def test_every_own_env_name_is_read():
    texts = {"dialect": "lmi-17", "isa": "avx2", "max_itl_ms": "50", "kv_cache_bytes": "1GiB", "threads": "2"}
    for row in setting_rows():
        text = texts.get(row.name) or (EXAMPLES[row.name][0] if row.name in EXAMPLES else None)
        if text is None:
            text = {"True": "false", "False": "true"}.get(
                str(row.default), row.rule.choices[0] if row.rule.choices else "3"
            )
        settings, _ = load_settings({} if row.name == "model" else MODEL, {row.env: text})
        assert getattr(settings, row.name) == row.rule.read(text)


@pytest.mark.parametrize("name", sorted(FOREIGN_ENV_NAMES))
def test_variables_of_other_headrace_commands_do_not_stop_the_start(name):
    settings, notices = load_settings(MODEL, {name: "x"})
    assert settings == load_settings(MODEL, {})[0]
    assert notices == []
