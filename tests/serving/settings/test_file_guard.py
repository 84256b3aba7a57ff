"""The files of a model set formats and limits; all else is for flags, the environment and trusted files."""

import json
import os
from dataclasses import fields

import pytest

from headrace.core.errors import SettingsError
from headrace.serving.settings.container_meanings import parts_of
from headrace.serving.settings.container_tables import MODEL_CONFIG, OPTIONS, PROPERTIES
from headrace.serving.settings.container_values import VLLM_LIMITS
from headrace.serving.settings.file_guard import file_scope
from headrace.serving.settings.rules import FileScope
from headrace.serving.settings.server_settings import ServerSettings, setting_names
from headrace.serving.settings.sources import gather_settings

DEFAULTS = {spec.name: spec.default for spec in fields(ServerSettings)}
OPERATORS = {
    *(
        "revision",
        "models",
        "models_max",
        "models_hub",
        "model_ttl_s",
        "host",
        "port",
        "tls_cert",
        "tls_key",
        "container",
        "trust_model_files",
        "allow_anonymous",
        "api_key",
    ),
    *("sandbox", "code_network", "code_folders", "code_max_processes", "code_memory_bytes", "code_temporary_bytes"),
    *("cors_allow_origins", "allowed_hosts", "handler", "management_address", "metrics_address", "backend"),
    *("prefix_cache_dir", "prefix_cache_disk_bytes"),
    *("strict_backend", "device", "batch_invariant", "trust_remote_code", "threads", "isa", "max_itl_ms", "adapter"),
    *("allow_runtime_lora_updating", "adapter_folders", "eula_check", "max_buffered_bytes", "max_connections"),
    *("receive_timeout_s", "send_timeout_s", "grammar_timeout_s", "stored_responses_bytes", "stored_responses_age_s"),
    *("batch_bytes", "batch_folder"),
    *("shutdown_grace_s", "shutdown_delay_s", "cache_dir", "metrics", "web", "log_format", "log_level"),
    *("otlp_traces_endpoint", "log_prompts"),
}


def serve(folder, properties="", config="", env=None, **overrides):
    """The settings and messages of `headrace serve FOLDER`."""
    (folder / "serving.properties").write_text(properties)
    if config:
        (folder / "model-config.yaml").write_text(config)
    settings, notices = gather_settings({"model": str(folder), **overrides}, env or {})
    return settings, [notice.message for notice in notices if notice.kind == "ignored"]


@pytest.fixture
def folder(tmp_path):
    """A downloaded model, with links that lead outside, beside what it must not read."""
    (tmp_path / "secret").write_text("secret {{ messages }}")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    (tmp_path / "other" / "generation_config.json").write_text("{}")
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "chat.jinja", "generation_config.json"):
        (folder / name).write_text("{}")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "linked").symlink_to(tmp_path / "other")
    (folder / "loop").symlink_to(folder / "loop")
    return folder


def test_every_setting_is_for_operators_or_for_the_files_of_models_too():
    assert {name for name in setting_names() if file_scope(name) is FileScope.NEVER} == OPERATORS
    scopes = {name: file_scope(name) for name in setting_names() if name not in OPERATORS}
    assert {name for name, scope in scopes.items() if scope is FileScope.INSIDE} == {
        *("model", "chat_template", "generation_config")
    }
    assert {name for name, scope in scopes.items() if scope is FileScope.LIMITS} == {"vllm_args"}


def test_every_key_of_a_file_that_sets_what_is_not_its_own_is_known_to_the_tests_below():
    meanings = [meaning for table in (OPTIONS, PROPERTIES, MODEL_CONFIG) for meaning in table.values()]
    set_by_files = {part.field for meaning in meanings for part in parts_of(meaning)}
    assert set_by_files & OPERATORS == {"revision", "cors_allow_origins", "trust_remote_code"}


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("cors_allowed_origin=*", "cors_allow_origins", ("*",)),
        ("option.trust_remote_code=true", "trust_remote_code", True),
        ("option.revision=evil", "revision", "evil"),
        ("option.hf_config_path=/etc", "vllm_args", {"hf_config_path": "/etc"}),
        ("option.distributed_executor_backend=evil.Executor", "vllm_args", ...),
        ("option.compilation_config={}", "vllm_args", {"compilation_config": {}}),
        ("option.speculative_draft_model=org/x", "vllm_args", {"speculative_config": {"model": "org/x"}}),
        ('option.speculative_config={"method": "eagle3", "model": "/etc"}', "vllm_args", ...),
    ],
)
@pytest.mark.parametrize("form", ["properties", "yaml"])
def test_what_concerns_others_or_runs_code_is_refused_by_name(form, line, field, value, folder):
    name, _, text = line.partition("=")
    if form == "yaml" and not name.startswith("option."):
        return
    key = f"handler.vllm_engine_config.{name.removeprefix('option.')}" if form == "yaml" else name
    content = json.dumps({"handler": {"vllm_engine_config": {name.removeprefix("option."): text}}})
    given = {"config": content} if form == "yaml" else {"properties": line}

    settings, messages = serve(folder, **given)
    assert getattr(settings, field) == DEFAULTS[field]
    (message,) = [message for message in messages if "may not set" in message]
    assert message.startswith(f"{key} has no effect: the files of a model may not set ")
    assert "--trust-model-files" in message

    for trust in ({"trust_model_files": "true"}, {"env": {"HEADRACE_CONTAINER": "true"}}):
        settings, messages = serve(folder, **given, **trust)
        assert getattr(settings, field) != DEFAULTS[field]
        assert value is ... or getattr(settings, field) == value
        assert not [message for message in messages if "may not set" in message]


@pytest.mark.parametrize("key", ["model_id", "chat_template", "generation_config"])
@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd", "{parent}/secret", "{parent}/other", "../other", "../secret", "a/../../other", "~", "~/x"),
        *("link", "linked", "loop", "./linked/config.json", "/opt/ml/model/../other", "file:///etc/passwd", "secret"),
        *("{folder}/linked", "{folder}/../other", "org/other", "s3://bucket/model/", "https://host/x"),
    ],
)
def test_a_path_outside_of_the_folder_stops_the_start(key, path, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    path = path.format(folder=folder, parent=folder.parent)
    with pytest.raises(SettingsError, match=rf"option\.{key} is .*; expected a path in the model's folder"):
        serve(folder, f"option.{key}={path}")


@pytest.mark.parametrize("key", ["model_checkpoint_dir", "model_path", "model_id", "model_name"])
@pytest.mark.parametrize("path", ["/etc", "../other", "linked", "org/other", "s3://bucket/x"])
def test_a_model_config_names_no_other_model_either(key, path, folder):
    (folder / "config.json").unlink()
    if key == "model_name" and "/" not in path:
        return
    with pytest.raises(SettingsError, match=rf"handler\.{key} is .*; expected a path in the model's folder"):
        serve(folder, config=json.dumps({"handler": {key: path}}))


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("option.model_id=/opt/ml/model", "model", "{folder}"),
        ("option.model_id=.", "model", "{folder}"),
        ("option.chat_template=chat.jinja", "chat_template", "{folder}/chat.jinja"),
        ("option.chat_template=/opt/ml/model/chat.jinja", "chat_template", "{folder}/chat.jinja"),
        ("option.chat_template={{ messages }}", "chat_template", "{{ messages }}"),
        ("option.chat_template=chatml", "chat_template", "chatml"),
        ("option.generation_config=.", "generation_config", "{folder}"),
        ("option.generation_config=vllm", "generation_config", "vllm"),
        ("option.max_model_len=64", "max_model_len", 64),
        ("option.dtype=int8", "dtype", "w8a8"),
        ("option.trust_remote_code=false", "trust_remote_code", False),
        ("job_queue_size=7", "max_concurrent_requests", 7),
        ("option.block_size=16", "vllm_args", {"block_size": 16}),
    ],
)
def test_formats_limits_and_paths_in_the_folder_are_applied(line, field, value, folder):
    settings, messages = serve(folder, line)
    expected = value.replace("{folder}", str(folder)) if isinstance(value, str) else value
    found = getattr(settings, field)
    assert (os.path.realpath(found) if str(expected).startswith("/") else found) == expected
    assert not [message for message in messages if "may not set" in message]


@pytest.mark.parametrize(
    ("line", "given", "field", "value"),
    [
        ("option.chat_template=/etc/passwd", {"chat_template": "chatml"}, "chat_template", "chatml"),
        ("cors_allowed_origin=*", {"cors_allow_origins": "https://a"}, "cors_allow_origins", ("https://a",)),
        ("cors_allowed_origin=*", {"env": {"SERVING_CORS_ALLOWED_ORIGIN": "https://b"}}, "cors_allow_origins", ...),
    ],
)
def test_what_an_operator_gives_counts_and_is_not_confused_with_the_files(line, given, field, value, folder):
    settings, _ = serve(folder, line, **given)
    assert getattr(settings, field) == (("https://b",) if value is ... else value)


def test_the_files_of_a_container_stay_bound_if_its_owner_says_so(folder):
    env = {"HEADRACE_CONTAINER": "true", "HEADRACE_TRUST_MODEL_FILES": "false"}
    assert serve(folder, "cors_allowed_origin=*", env=env)[0].cors_allow_origins == ()


def test_arguments_of_vllm_that_files_may_set_are_arguments_that_files_can_name():
    named = {"block_size", "kv_cache_dtype", "load_format", "pipeline_parallel_size", "quantization", "seed"}
    assert VLLM_LIMITS - set(OPTIONS) <= named
