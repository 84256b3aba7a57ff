"""The settings of a worker's server, and the `headrace worker` command."""

from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.platform.cluster.host_resources import Given
from headrace.platform.cluster.launcher import WorkerSpec
from headrace.platform.cluster.worker import PreparedWorker
from headrace.platform.cluster.worker_files import Assignment
from headrace.tools.cli.worker import worker_settings

PORT = 23456


def no_fetching(uri: str) -> Path:
    raise AssertionError(f"{uri} should not be fetched")


def settings_of(
    env=None, *, folder: Path | None = None, fetch=no_fetching, threads=None, memory=None, sharing=1, **options: str
):
    spec = WorkerSpec(name="w", options=options, threads=threads, memory_bytes=memory)
    given = Given(workers_per_gpu=sharing)
    prepared = PreparedWorker(
        assignment=Assignment(spec=spec, port=PORT, cache_folder="/c", log_position=0, given=given),
        model_folder=folder,
        empty_folder=Path("/nonexistent"),
        fetch_model=fetch,
        fetch_adapter=no_fetching,
        report_notices=lambda _: None,
    )
    return worker_settings(prepared, env or {})


def test_the_environment_means_what_it_means_in_a_container() -> None:
    env = {
        "HF_MODEL_ID": "org/model",
        "SM_NUM_GPUS": "4",
        "OPTION_DTYPE": "bf16",
        "MAX_TOTAL_TOKENS": "512",
        "QUANTIZE": "eetq",
        "PORT": "80",
    }
    settings, notices = settings_of(env)
    assert (settings.model, settings.max_model_len) == ("org/model", 512)
    assert (settings.host, settings.port, settings.container) == ("127.0.0.1", PORT, True)
    assert {"SM_NUM_GPUS", "QUANTIZE"} <= {notice.name for notice in notices}


def test_the_image_and_the_share_of_the_host_override_the_environment() -> None:
    env = {"HF_MODEL_ID": "org/model", "HEADRACE_PORT": "1", "HEADRACE_HOST": "0.0.0.0", "HEADRACE_THREADS": "64"}
    env["HEADRACE_MAX_MEMORY_BYTES"] = "64GiB"
    env["HEADRACE_SHUTDOWN_DELAY_S"] = "9"
    env["HEADRACE_MANAGEMENT_ADDRESS"] = "127.0.0.1:8081"
    settings, _ = settings_of(env, threads=2, memory=1 << 30, **{"dialect": "lmi-0.26", "--served-model-name": "llm"})
    assert settings.max_memory_bytes == 1 << 30
    assert (settings.host, settings.port, settings.threads) == ("127.0.0.1", PORT, 2)
    assert settings.shutdown_delay_s == 0
    assert (settings.management_address, settings.metrics_address) == (None, None)
    assert (settings.dialect, settings.served_model_name) == ("lmi-0.26", "llm")


def test_workers_that_share_a_gpu_divide_its_memory_unless_they_say_how_much() -> None:
    env = {"HF_MODEL_ID": "org/model"}
    assert settings_of(env)[0].gpu_memory_utilization == 0.9
    assert settings_of(env, sharing=2)[0].gpu_memory_utilization == 0.45
    assert settings_of({**env, "HEADRACE_GPU_MEMORY_UTILIZATION": "0.3"}, sharing=2)[0].gpu_memory_utilization == 0.3


def test_the_model_folder_stands_for_opt_ml_model(tmp_path) -> None:
    (tmp_path / "config.json").write_text("{}")
    settings, _ = settings_of(folder=tmp_path)
    assert settings.model == str(tmp_path)
    settings, _ = settings_of({"HF_MODEL_ID": "/opt/ml/model"}, folder=tmp_path)
    assert settings.model == str(tmp_path)


def test_properties_one_folder_deep_name_the_model(tmp_path) -> None:
    (tmp_path / "mymodel").mkdir()
    (tmp_path / "mymodel" / "serving.properties").write_text("option.model_id=org/other\noption.max_model_len=99\n")
    settings, _ = settings_of({"HF_MODEL_ID": "org/model"}, folder=tmp_path)
    assert (settings.model, settings.max_model_len) == ("org/other", 99)


@pytest.mark.parametrize("inside", [False, True])
def test_a_model_in_object_storage_is_fetched_and_keeps_its_name(tmp_path, inside) -> None:
    fetched: list[str] = []

    def fetch(uri: str) -> Path:
        fetched.append(uri)
        (tmp_path / "top").mkdir()
        (tmp_path / "top" / "config.json").touch()
        return tmp_path if inside else tmp_path / "top"

    settings, _ = settings_of({"OPTION_MODEL_ID": "s3://bucket/models/llama/"}, fetch=fetch)
    assert fetched == ["s3://bucket/models/llama/"]
    assert (settings.model, settings.served_model_name) == (str(tmp_path / "top"), "llama")


def test_a_missing_model_is_one_sentence() -> None:
    with pytest.raises(SettingsError, match="No model was named"):
        settings_of()


def test_an_unknown_option_of_an_image_is_refused() -> None:
    with pytest.raises(SettingsError, match="Did you mean dtype"):
        settings_of({"HF_MODEL_ID": "m"}, dtyp="bf16")


def test_the_command_exists_but_is_not_listed(headrace) -> None:
    assert "worker" not in headrace("--help").stdout.split("Options:")[1].split()
    assert "ASSIGNMENT" in headrace("worker", "--help").stdout


def test_an_invalid_assignment_file_is_one_sentence(headrace, tmp_path, capfd) -> None:
    assert headrace("worker", tmp_path / "nothing.json").exit_code == 2
    said = capfd.readouterr().err
    assert said.startswith("Error: ")
    assert "cannot be read" in said
