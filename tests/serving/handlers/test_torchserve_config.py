"""TorchServe's config.properties and variables: which keys are applied, refused, or named as without effect."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import SettingsError
from headrace.serving.handlers.torchserve_config import (
    ServerConfig,
    allowed_urls,
    check_config,
    load_config,
    management_options,
    merge_config,
    resolve_variables,
    server_settings,
    variable,
    versions_of,
    visible_environment,
)
from headrace.serving.settings.properties_file import parse_properties


def config_of(text: str, /, **env: str) -> ServerConfig:
    keys = resolve_variables(parse_properties(text), env)
    return ServerConfig(env=merge_config(env, keys), keys=frozenset(keys))


def test_keys_are_variables_of_the_same_meaning_which_count_before_them() -> None:
    config = config_of("# comment\njob_queue_size = 7\nbatch_size=2\n", SAGEMAKER_TS_BATCH_SIZE="4")

    assert variable(config.env, "JOB_QUEUE_SIZE") == "7"
    assert variable(config.env, "BATCH_SIZE") == "4"


def test_values_may_name_variables_and_go_on_over_lines() -> None:
    text = 'model_store=$$STORE$$/models\nmodels={\\\n  "noop": {\\\n    "1.0": {"minWorkers": 2}\\\n  }\\\n}\n'
    config = config_of(text, STORE="/data")

    assert variable(config.env, "MODEL_STORE") == "/data/models"
    assert versions_of(config.env, "noop") == {"1.0": {"minWorkers": 2}}
    with pytest.raises(SettingsError, match="Invalid Environment Variable STORE"):
        config_of(text)


@pytest.mark.parametrize("text", ["[]", '{"noop": 1}', '{"noop": {"1.0": 1}}', "{"])
def test_a_key_models_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="TorchServe's models is "):
        versions_of({"TS_MODELS": text}, "noop")


def test_addresses_and_limits_are_settings_of_the_server() -> None:
    text = (
        "inference_address=http://0.0.0.0:8090\nmanagement_address=http://127.0.0.1:8091\n"
        "max_request_size=6553500\ncors_allowed_origin=*\n"
    )

    assert server_settings(config_of(text).env) == {
        "host": "0.0.0.0",
        "port": 8090,
        "management_address": "http://127.0.0.1:8091",
        "max_body_bytes": 6553500,
        "cors_allow_origins": ("*",),
    }
    assert server_settings({"TS_ENABLE_METRICS_API": "false"}) == {"metrics_address": "off"}


def test_a_certificate_is_applied_where_an_address_asks_for_it() -> None:
    files = "certificate_file=/c.pem\nprivate_key_file=/k.pem\n"
    encrypted = config_of(f"{files}management_address=https://127.0.0.1:8443\n")

    assert server_settings(encrypted.env) == {
        "management_address": "http://127.0.0.1:8443",
        "tls_cert": Path("/c.pem"),
        "tls_key": Path("/k.pem"),
    }
    assert check_config(encrypted) == []
    assert server_settings(config_of(files).env) == {}
    assert check_config(config_of(files))[0] == (
        "TorchServe's certificate_file has no effect: no address begins with https://."
    )


@pytest.mark.parametrize("address", ["https://127.0.0.1:8443", "unix:/tmp/socket", "http://127.0.0.1"])
def test_an_address_that_cannot_be_listened_on_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match="TorchServe's management_address is '"):
        server_settings({"TS_MANAGEMENT_ADDRESS": address})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keystore=keystore.p12", "keystore is set; expected no such key: export it to PEM files"),
        ("plugins_path=/plugins", "plugins of TorchServe are Java code"),
        ("disable_token_authorization=false", "disable_token_authorization is false: tokens are not supported"),
        ("enable_grpc_ssl=true", "gRPC is not served"),
    ],
)
def test_a_key_that_asks_for_what_is_not_supported_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_config(config_of(text))


def test_keys_that_change_nothing_are_named_and_those_that_are_applied_are_not() -> None:
    text = "number_of_netty_threads=32\nmetrics_format=statsd\njobqueue_size=3\njob_queue_size=7\nload_models=all\n"

    assert check_config(config_of(text)) == [
        "TorchServe's number_of_netty_threads has no effect: there is no Netty.",
        "TorchServe's metrics_format is statsd and has no effect: it is always prometheus.",
        "config.properties: jobqueue_size is no key of TorchServe. Did you mean job_queue_size?",
    ]
    assert check_config(config_of("disable_token_authorization=true\nenable_envvars_config=true")) == []


def test_the_first_file_counts_and_a_named_one_before_all(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.properties").write_text(f"job_queue_size={len(name) + ord(name)}\n")
    (tmp_path / "empty").mkdir()
    named = tmp_path / "ts.properties"
    named.write_text("job_queue_size=5\n")

    def queue_size(env: dict[str, str], *folders: str) -> str:
        return variable(load_config(env, [tmp_path / name for name in folders]).env, "JOB_QUEUE_SIZE")

    assert queue_size({}, "empty", "b", "a") == "99"
    assert queue_size({"TS_CONFIG_FILE": str(named)}, "a") == "5"
    assert queue_size({"TS_CONFIG_FILE": "/opt/ml/model/config.properties"}, "a") == "98"
    assert load_config({}, [tmp_path / "empty"]).file is None
    with pytest.raises(SettingsError, match=r"TS_CONFIG_FILE is 'x'; expected a file\."):
        load_config({"TS_CONFIG_FILE": "x"}, [])


def test_handlers_do_not_see_variables_of_the_blacklist() -> None:
    env = {"TS_BLACKLIST_ENV_VARS": "aws_.*|SECRET", "AWS_KEY": "1", "MY_SECRET": "2", "SECRET": "3"}

    assert visible_environment(env).keys() == {"TS_BLACKLIST_ENV_VARS", "MY_SECRET"}
    with pytest.raises(SettingsError, match="expected a regular expression"):
        visible_environment({"TS_BLACKLIST_ENV_VARS": "("})


def test_allowed_urls_must_match_whole() -> None:
    patterns = allowed_urls({"TS_ALLOWED_URLS": "https://s3.amazonaws.com/.*, file:///models/.*"})

    assert [any(p.fullmatch(url) for p in patterns) for url in ("https://S3.amazonaws.com/x", "http://x/models/")] == [
        True,
        False,
    ]
    assert allowed_urls({})[0].fullmatch("http://any/where")


def test_options_of_the_management_api_are_read() -> None:
    env = {"TS_DEFAULT_WORKERS_PER_MODEL": "2", "TS_UNREGISTER_MODEL_TIMEOUT": "9", "TS_ENABLE_MODEL_API": "false"}
    options = management_options(env)

    assert (options.default_workers, options.drain_s, options.accepts_changes) == (2, 9, False)
    with pytest.raises(SettingsError, match="unregister_model_timeout is 'long'; expected a whole number"):
        management_options({"TS_UNREGISTER_MODEL_TIMEOUT": "long"})


@given(st.text(), st.dictionaries(st.text(), st.text()))
def test_any_text_is_keys_or_refused(text: str, env: dict[str, str]) -> None:
    try:
        config = config_of(text, **env)
        check_config(config)
    except SettingsError:
        return
    assert config.keys == resolve_variables(parse_properties(text), env).keys()
