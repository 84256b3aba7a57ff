"""A model's code is found before the settings of an engine are read."""

import tarfile
from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.serving.settings.sources import gather_settings
from headrace.tools.cli.user_code import find_user_code, formatted_notices, formatted_overrides, unpacked
from tests.headrace_handler.torchserve_models import write_model

NONE = Path("/nonexistent")
LLM = {"config.json": "{}"}
HANDLE = "def handle(inputs): ..."


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, content in {
        **LLM,
        "model.py": HANDLE,
        "serving.properties": "option.tensor_parallel_degree=none",
    }.items():
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.mark.parametrize(
    ("overrides", "env"),
    [
        ({"model": "smollm2"}, {}),
        ({"model": "s3://bucket/model/"}, {}),
        ({}, {"HF_MODEL_ID": "org/model"}),
        ({}, {}),
        ({"model": "x" * 5000}, {}),
        ({"model": "a\0b"}, {}),
    ],
)
def test_models_that_are_no_folders_have_no_code(overrides, env) -> None:
    assert find_user_code(overrides, env, model_folder=NONE) is None


def test_the_setting_native_leaves_the_code_alone(folder) -> None:
    assert find_user_code({"model": str(folder), "handler": "native"}, {}, model_folder=NONE) is None
    assert find_user_code({}, {"HEADRACE_HANDLER": "native"}, model_folder=folder) is None


def test_the_setting_handler_is_an_error_without_code(tmp_path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SettingsError, match="has no code to run"):
        find_user_code({"model": str(tmp_path), "handler": "handler"}, {}, model_folder=NONE)


def test_a_setting_that_is_invalid_is_refused(folder) -> None:
    with pytest.raises(SettingsError, match="HEADRACE_HANDLER is 'sometimes'"):
        find_user_code({"model": str(folder)}, {"HEADRACE_HANDLER": "sometimes"}, model_folder=NONE)


def test_formatters_go_with_an_engine_that_speaks_djl_by_default(tmp_path) -> None:
    (tmp_path / "model.py").write_text("@input_formatter\ndef f(payload): ...")
    (tmp_path / "config.json").write_text("{}")
    overrides = {"model": str(tmp_path)}

    code = find_user_code(overrides, {}, model_folder=NONE)

    assert code is not None
    assert not code.serves
    assert code.plan.spec is not None
    assert (code.plan.spec.load.entry, code.plan.spec.max_workers) == ("model.py", 1)
    settings, notices = gather_settings(formatted_overrides(overrides, {}), {}, model_folder=NONE)
    assert settings.dialect == "lmi-17"
    assert [notice.message for notice in formatted_notices(code, notices)] == list(code.summaries)
    assert formatted_overrides({"dialect": "tgi-3"}, {})["dialect"] == "tgi-3"
    assert "dialect" not in formatted_overrides({}, {"HEADRACE_DIALECT": "openai"})


def test_names_of_containers_set_the_server_around_the_code_and_are_told(tmp_path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "inference.py").write_text("def model_fn(model_dir): ...")
    env = {
        "SAGEMAKER_BIND_TO_PORT": "9191",
        "SAGEMAKER_MAX_PAYLOAD_IN_MB": "20",
        "PORT": "7",
        "MAX_TOTAL_TOKENS": "an engine's, and no number",
        "SAGEMAKER_MODEL_SERVER_VMARGS": "-Xmx2g",
    }

    named = find_user_code({"model": str(tmp_path)}, env, model_folder=NONE)
    container = find_user_code({"model": str(tmp_path), "container": "true"}, {"PORT": "7000"}, model_folder=NONE)

    assert named is not None
    assert container is not None
    assert (named.settings.port, named.settings.max_body_bytes, container.settings.port) == (9191, 20 << 20, 7000)
    assert [(notice.name, notice.kind) for notice in (*named.notices, *named.server_notices)] == [
        ("handler", "applied"),
        ("handler", "ignored"),
        ("SAGEMAKER_BIND_TO_PORT", "applied"),
        ("SAGEMAKER_MAX_PAYLOAD_IN_MB", "applied"),
    ]
    assert named.description == [
        *named.summaries,
        "SAGEMAKER_MODEL_SERVER_VMARGS has no effect: there is no Java virtual machine.",
    ]


@pytest.fixture
def torchserve(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    return write_model(tmp_path / "models" / "noop", "def handle(data, context): ...")


def test_the_settings_of_torchserves_server_count_after_our_own(torchserve) -> None:
    (torchserve / "config.properties").write_text(
        "inference_address=http://127.0.0.1:9080\nmanagement_address=http://127.0.0.1:9081\n"
        "metrics_address=http://127.0.0.1:9082\njob_queue_size=7\nnetty_client_threads=1\n"
    )
    env = {"HEADRACE_METRICS_ADDRESS": "off", "TS_JOB_QUEUE_SIZE": "8", "HEADRACE_TRUST_MODEL_FILES": "true"}
    code = find_user_code({"model": str(torchserve), "port": "1"}, env, model_folder=NONE)
    assert code is not None
    settings, spec = code.settings, code.models[0].plan.spec
    assert (settings.port, settings.management_address, settings.metrics_address) == (1, "http://127.0.0.1:9081", None)
    assert spec is not None
    assert spec.queue_size == 8
    assert "TorchServe's netty_client_threads has no effect: there is no Netty." in code.ignored
    for name in ("port", "metrics_address"):
        assert any(f"TorchServe's setting of {name} has no effect" in text for text in code.ignored)


@pytest.mark.parametrize("place", ["the model's folder", "the model's store", "elsewhere"])
def test_a_config_of_the_model_does_not_open_the_server(place, torchserve, tmp_path, monkeypatch) -> None:
    folder = {"the model's folder": torchserve, "the model's store": torchserve.parent}.get(place, tmp_path)
    (folder / "config.properties").write_text(
        "inference_address=http://127.0.0.1:9080\nmanagement_address=http://127.0.0.1:9081\n"
        "metrics_address=http://127.0.0.1:9082\ncors_allowed_origin=*\nmax_request_size=1000\njob_queue_size=7\n"
    )
    write_model(torchserve.parent / "other", "def handle(data, context): ...")
    served = torchserve.parent if place == "the model's store" else torchserve
    monkeypatch.chdir(served if place != "elsewhere" else tmp_path)
    code = find_user_code({"model": str(served)}, {}, model_folder=NONE)
    assert code is not None
    spec = code.models[0].plan.spec
    assert spec is not None
    assert (spec.queue_size, code.settings.max_body_bytes) == (7, 1000)
    found = (code.settings.port, code.settings.management_address, code.settings.cors_allow_origins)
    refused = [text for text in code.ignored if "only options of the server set it" in text]
    if place == "elsewhere":
        assert (found, refused) == ((9080, "http://127.0.0.1:9081", ("*",)), [])
        return
    assert found == (8080, "http://127.0.0.1:8081", ())
    assert len(refused) == 4
    named = {"TS_CONFIG_FILE": str(folder / "config.properties")}
    code = find_user_code({"model": str(served)}, named, model_folder=NONE)
    assert code is not None
    assert code.settings.cors_allow_origins == ("*",)


def test_the_file_of_the_current_folder_counts_only_outside_of_containers(torchserve, tmp_path, monkeypatch) -> None:
    (tmp_path / "config.properties").write_text("job_queue_size=7\n")
    monkeypatch.chdir(tmp_path)
    sizes = [
        code.models[0].plan.spec.queue_size
        for code in (
            find_user_code({"model": str(torchserve)}, {}, model_folder=NONE),
            find_user_code({}, {}, model_folder=torchserve),
        )
    ]
    assert sizes == [7, 100]


def test_a_folder_of_models_is_a_store_and_a_file_may_name_it(torchserve, tmp_path, monkeypatch) -> None:
    write_model(tmp_path / "models" / "other", "def handle(data, context): ...")
    config = tmp_path / "ts.properties"
    config.write_text(f"model_store={tmp_path / 'models'}\nload_models=other\n")

    code = find_user_code({"model": str(torchserve.parent)}, {}, model_folder=NONE)
    assert [model.url for model in code.models] == ["noop", "other"]
    code = find_user_code({}, {"TS_CONFIG_FILE": str(config)}, model_folder=NONE)
    assert [model.url for model in code.models] == ["other"]
    assert code.store is not None
    assert find_user_code({"model": str(torchserve.parent), "handler": "native"}, {}, model_folder=NONE) is None


def pack(archive: Path, folder: Path, inner: str = ".") -> Path:
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, inner)
    return archive


@pytest.mark.parametrize("name", ["m.tgz", "m.tar.gz", "M.TAR.GZ", "m.Tgz"])
@pytest.mark.parametrize("inner", [".", "noop"])
def test_archives_of_torchserve_are_served_by_any_of_their_names(torchserve, tmp_path, name, inner) -> None:
    archive = pack(tmp_path / name, torchserve, inner)
    (tmp_path / "store").mkdir()

    named = find_user_code({"model": str(archive)}, {}, model_folder=NONE)
    archive.rename(tmp_path / "store" / name)
    loaded = find_user_code({"model": str(tmp_path / "store")}, {"TS_LOAD_MODELS": f"fast={name}"}, model_folder=NONE)

    assert named is not None
    assert loaded is not None
    assert [model.plan.spec.contract for model in (*named.models, *loaded.models)] == ["torchserve"] * 2
    assert [model.plan.spec.model_name for model in (*named.models, *loaded.models)] == ["noop", "fast"]


@pytest.mark.parametrize("name", ["model.tar.gz", "MODEL.TGZ"])
def test_other_archives_are_served_by_their_code_or_by_the_engine(tmp_path, name) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "config.json").write_text("{}")
    overrides = {"model": str(pack(tmp_path / name, tmp_path / "files")), "cache_dir": tmp_path / "home"}

    assert find_user_code(overrides, {}, model_folder=NONE) is None
    root = Path(str(unpacked(overrides, {})["model"]))
    assert (root / "config.json").read_text() == "{}"
    assert unpacked(overrides, {})["served_model_name"] == str(tmp_path / name)
    assert unpacked(overrides, {"HEADRACE_SERVED_MODEL_NAME": "mine"})["served_model_name"] == "mine"

    (tmp_path / "files" / "inference.py").write_text("def model_fn(folder): ...")
    pack(tmp_path / name, tmp_path / "files")
    code = find_user_code(overrides, {}, model_folder=NONE)
    assert code is not None
    assert code.plan.spec is not None
    assert (code.plan.spec.contract, code.place) == ("sagemaker", tmp_path / name)
    assert unpacked({"model": str(tmp_path / "files")}, {}) == {"model": str(tmp_path / "files")}
