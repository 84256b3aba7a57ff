"""Settings of DJL Serving that describe a handler."""

from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import SettingsError
from headrace.serving.handlers.djl import make_spec
from headrace.serving.handlers.found import Found
from headrace.serving.handlers.spec import HandlerSpec


def spec_of(properties: dict[str, str] | None = None, root: Path = Path("/models/tiny"), **facts: Any) -> HandlerSpec:
    return make_spec(Found(model_name="tiny", root=root, code=root, properties=properties or {}, **facts))


def test_a_handler_without_settings_has_the_limits_of_djl() -> None:
    spec = spec_of()

    assert (spec.contract, spec.load.entry, spec.load.options) == ("djl", "", {})
    assert (spec.min_workers, spec.max_workers, spec.queue_size, spec.load.batch_size) == (1, 2, 1000, 1)
    assert (spec.load_timeout_s, spec.call_timeout_s, spec.chunk_timeout_s) == (240, 120, 120)
    assert (spec.max_batch_delay_ms, spec.max_idle_s, spec.restart.max_failures) == (100, 60, 10)


def test_images_of_djl_wait_longer() -> None:
    spec = spec_of(family="djl")

    assert (spec.load_timeout_s, spec.call_timeout_s) == (1200, 240)


def test_properties_set_the_limits_and_the_options_of_the_first_call() -> None:
    spec = spec_of(
        {
            "engine": "Python",
            "batch_size": "8",
            "max_batch_delay": "20",
            "max_idle_time": "30",
            "job_queue_size": "5",
            "minWorkers": "2",
            "maxWorkers": "3",
            "retry_threshold": "0",
            "chunked_read_timeout": "9",
            "option.entryPoint": "own.py",
            "option.predict_timeout": "7",
            "option.model_loading_timeout": "600",
            "option.pythonExecutable": "/usr/bin/python3",
            "option.env": "A=1, B=x=y",
            "option.dtype": "fp16",
        }
    )

    assert (spec.load.batch_size, spec.max_batch_delay_ms, spec.queue_size, spec.max_idle_s) == (8, 20, 5, 30)
    assert (spec.min_workers, spec.max_workers, spec.restart.max_failures) == (2, 3, 0)
    assert (spec.call_timeout_s, spec.load_timeout_s, spec.chunk_timeout_s) == (7, 600, 9)
    assert (spec.load.entry, spec.python, spec.environment) == (
        "own.py",
        Path("/usr/bin/python3"),
        {"A": "1", "B": "x=y"},
    )
    assert (spec.load.options["dtype"], spec.load.options["batch_size"], spec.load.options["engine"]) == (
        "fp16",
        "8",
        "Python",
    )
    assert "env" not in spec.load.options


def test_variables_fill_what_the_file_leaves_out() -> None:
    env = {
        "OPTION_DTYPE": "fp32",
        "OPTION_ENTRYPOINT": "from_env.py",
        "OPTION_MAX_TOKENS": "9",
        "SERVING_JOB_QUEUE_SIZE": "4",
        "SERVING_MAX_WORKERS": "1",
        "PREDICT_TIMEOUT": "3",
        "HF_MODEL_ID": "org/name",
        "PYTHON_EXECUTABLE": "/opt/python",
    }

    spec = spec_of({"option.dtype": "fp16"}, env=env)

    assert spec.load.options == {
        "dtype": "fp16",
        "entryPoint": "from_env.py",
        "max_tokens": "9",
        "model_id": "org/name",
    }
    assert (spec.load.entry, spec.queue_size, spec.max_workers, spec.call_timeout_s) == ("from_env.py", 4, 1, 3)
    assert spec.python == Path("/opt/python")


def test_a_model_in_the_folder_is_named_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()

    relative = spec_of({"option.model_id": "weights"}, tmp_path)
    container = spec_of({"option.s3url": "/opt/ml/model"}, tmp_path)

    assert relative.load.options["model_id"] == str(tmp_path / "weights")
    assert container.load.options["model_id"] == str(tmp_path)


@pytest.mark.parametrize("properties", [{"option.rolling_batch": "auto"}, {"option.async_mode": "true"}])
def test_asynchronous_handlers_have_one_worker_and_no_batches(properties: dict[str, str]) -> None:
    spec = spec_of({"batch_size": "8", **properties})

    assert (spec.max_workers, spec.load.batch_size) == (1, 1)


def test_on_a_gpu_there_is_one_worker_unless_the_file_says_otherwise() -> None:
    assert (spec_of(num_gpus=1).load.device, spec_of(num_gpus=1).max_workers) == (0, 1)
    assert spec_of({"maxWorkers": "2", "gpu.maxWorkers": "4"}, num_gpus=1).max_workers == 4


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("batch_size", "1000", "batch_size is '1000'; expected a whole number from 1 to 999."),
        ("minWorkers", "many", "minWorkers is 'many'; expected a whole number of at least 1."),
        ("option.predict_timeout", "1.5", "option.predict_timeout is '1.5'; expected a whole number of at least 1."),
        ("option.env", "A", "option.env has 'A'; expected NAME=value, separated by commas."),
    ],
)
def test_a_setting_out_of_its_range_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        spec_of({name: value})

    assert str(error.value) == message
