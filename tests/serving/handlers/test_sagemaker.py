"""Variables of SageMaker's images as settings of the processes that run `inference.py`."""

from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import SettingsError
from headrace.serving.handlers.found import Found
from headrace.serving.handlers.sagemaker import make_spec

ROOT = Path("/models/m")


def found(family: str = "", files: tuple[str, ...] = (), **facts: Any) -> Found:
    return Found(**{"model_name": "m", "root": ROOT, "code": ROOT, "family": family, "files": frozenset(files)} | facts)


@pytest.mark.parametrize(
    ("facts", "profile"),
    [
        ({"family": "sklearn"}, "sklearn"),
        ({"family": "xgboost"}, "xgboost"),
        ({"family": "torchserve"}, "pytorch"),
        ({"family": "transformers"}, "huggingface"),
        ({"family": "djl"}, "generic"),
        ({}, "generic"),
        ({"files": ("model.pth",)}, "pytorch"),
        ({"env": {"HF_TASK": "fill-mask"}}, "huggingface"),
        ({"env": {"HF_MODEL_ID": "org/model"}}, "huggingface"),
        (
            {
                "env": {"HF_MODEL_ID": "/models/irises"},
                "imports": {"code/inference.py": frozenset({"sklearn"})},
                "files": ("code/inference.py",),
            },
            "sklearn",
        ),
        (
            {
                "files": ("code/inference.py",),
                "imports": {"code/inference.py": frozenset({"os", "joblib"}), "train.py": frozenset({"torch"})},
            },
            "sklearn",
        ),
    ],
)
def test_the_image_or_else_the_framework_of_the_code_decides_by_which_rules_it_is_served(
    facts: dict[str, Any], profile: str
) -> None:
    assert make_spec(found(**facts)).load.options == {"profile": profile}


@pytest.mark.parametrize(
    ("files", "env", "entry"),
    [
        ((), {}, ""),
        (("code/inference.py",), {}, "inference.py"),
        (("inference.py",), {}, "inference.py"),
        (("code/inference.py",), {"SAGEMAKER_PROGRAM": "", "SAGEMAKER_SUBMIT_DIRECTORY": ""}, "inference.py"),
        (("code/serve.py",), {"SAGEMAKER_PROGRAM": "serve.py"}, "serve.py"),
        ((), {"SAGEMAKER_PROGRAM": "serve.py", "SAGEMAKER_SUBMIT_DIRECTORY": "/opt/ml/model/code"}, "serve.py"),
        ((), {"SAGEMAKER_PROGRAM": "serve.py", "SAGEMAKER_SUBMIT_DIRECTORY": "s3://b/sourcedir.tar.gz"}, "serve.py"),
    ],
)
def test_the_program_is_the_one_that_the_variables_name_or_the_one_that_lies_in_the_folder(
    files: tuple[str, ...], env: dict[str, str], entry: str
) -> None:
    assert make_spec(found(files=files, env=env)).load.entry == entry


def test_a_program_of_a_folder_of_its_own_is_named_by_its_whole_path() -> None:
    env = {"SAGEMAKER_PROGRAM": "serve.py"}

    assert make_spec(found(code=Path("/data/own"), env=env)).load.entry == "/data/own/serve.py"


@pytest.mark.parametrize(
    ("family", "env", "seconds"),
    [
        ("", {}, 3600),
        ("transformers", {"SAGEMAKER_MODEL_SERVER_TIMEOUT": "2"}, 120),
        (
            "transformers",
            {"SAGEMAKER_MODEL_SERVER_TIMEOUT": "2", "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS": "90"},
            90,
        ),
        ("torchserve", {}, 60),
        ("torchserve", {"SAGEMAKER_MODEL_SERVER_TIMEOUT": "2"}, 2),
        ("torchserve", {"SAGEMAKER_MODEL_SERVER_TIMEOUT": "2", "SAGEMAKER_TS_RESPONSE_TIMEOUT": "7"}, 7),
        ("sklearn", {"SAGEMAKER_MODEL_SERVER_TIMEOUT": "2"}, 2),
        ("xgboost", {"SAGEMAKER_TS_RESPONSE_TIMEOUT": "7"}, 60),
        ("xgboost", {"SAGEMAKER_MODEL_SERVER_TIMEOUT": "2", "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS": "90"}, 90),
        ("transformers", {"MMS_DEFAULT_RESPONSE_TIMEOUT": "500", "SAGEMAKER_MODEL_SERVER_TIMEOUT": "2"}, 30_000),
        ("transformers", {"MMS_DEFAULT_RESPONSE_TIMEOUT": "500", "MMS_DEFAULT_RESPONSE_TIMEOUT_SECONDS": "9"}, 9),
        ("torchserve", {"TS_DEFAULT_RESPONSE_TIMEOUT": "9", "SAGEMAKER_MODEL_SERVER_TIMEOUT": "2"}, 9),
        ("torchserve", {"TS_DEFAULT_RESPONSE_TIMEOUT": "9", "SAGEMAKER_TS_RESPONSE_TIMEOUT": "7"}, 7),
        ("torchserve", {"MMS_DEFAULT_RESPONSE_TIMEOUT": "9"}, 60),
    ],
)
def test_a_time_limit_is_in_the_unit_of_the_images_server(family: str, env: dict[str, str], seconds: float) -> None:
    spec = make_spec(found(family, env=env))

    assert (spec.call_timeout_s, spec.chunk_timeout_s) == (seconds, seconds)


def test_batches_and_workers_of_torchserve_are_those_of_its_variables() -> None:
    env = {
        "SAGEMAKER_TS_BATCH_SIZE": "4",
        "SAGEMAKER_TS_MAX_BATCH_DELAY": "20",
        "SAGEMAKER_TS_MIN_WORKERS": "2",
        "SAGEMAKER_TS_MAX_WORKERS": "3",
        "SAGEMAKER_STARTUP_TIMEOUT": "30",
    }

    spec = make_spec(found("torchserve", env=env, num_gpus=1))

    assert (spec.batch_size, spec.max_batch_delay_ms, spec.load_timeout_s) == (4, 20, 30)
    assert (spec.min_workers, spec.max_workers, spec.load.device) == (2, 3, 0)
    assert make_spec(found("sklearn", env=env, num_gpus=1)).batch_size == 1


def test_every_server_starts_as_many_workers_as_it_is_told() -> None:
    for family in ("", "transformers", "torchserve", "sklearn", "xgboost"):
        spec = make_spec(found(family, env={"SAGEMAKER_MODEL_SERVER_WORKERS": "3"}))
        assert (spec.min_workers, spec.max_workers) == (3, 3)


@pytest.mark.parametrize(("family", "prefix"), [("torchserve", "TS"), ("transformers", "MMS"), ("", "MMS")])
def test_variables_of_the_images_server_count_before_those_of_the_toolkit(family: str, prefix: str) -> None:
    env = {
        f"{prefix}_JOB_QUEUE_SIZE": "7",
        f"{prefix}_DEFAULT_WORKERS_PER_MODEL": "2",
        "SAGEMAKER_MODEL_SERVER_WORKERS": "3",
    }

    spec = make_spec(found(family, env=env))

    assert (spec.queue_size, spec.min_workers, spec.max_workers) == (7, 2, 2)
    assert "notices" not in spec.load.options


@pytest.mark.parametrize(
    ("family", "name", "sentence"),
    [
        (
            "torchserve",
            "MMS_DEFAULT_RESPONSE_TIMEOUT",
            "it is for multi-model-server, and the image of this model has ",
        ),
        (
            "transformers",
            "TS_JOB_QUEUE_SIZE",
            "it is for TorchServe, and the image of this model has multi-model-server",
        ),
        ("sklearn", "MMS_JOB_QUEUE_SIZE", "it is for multi-model-server, and the image of this model has gunicorn"),
        ("sklearn", "SAGEMAKER_TS_BATCH_SIZE", "it is for TorchServe, and the image of this model has gunicorn"),
        ("torchserve", "TS_NUMBER_OF_NETTY_THREADS", "Headrace's model server takes the place of TorchServe"),
        ("torchserve", "SAGEMAKER_TS_BATCHSIZE", "it is unknown; SAGEMAKER_TS_BATCH_SIZE may be meant"),
        ("transformers", "MMS_DEFAULT_TIMEOUT", "it is unknown; MMS_DEFAULT_RESPONSE_TIMEOUT may be meant"),
        ("", "CA_REPOSITORY_ARN", "packages come from the index of pip; set PIP_INDEX_URL"),
        ("xgboost", "MAX_CONTENT_LENGTH", "set SAGEMAKER_MAX_PAYLOAD_IN_MB"),
        ("", "SAGEMAKER_BASE_DIR", "the container's folders are below /opt/ml"),
        ("", "MMS_OF_THE_USER", None),
        ("", "SAGEMAKER_REGION", None),
    ],
)
def test_each_variable_of_a_server_that_changes_nothing_is_told_with_the_reason(
    family: str, name: str, sentence: str | None
) -> None:
    notices = make_spec(found(family, env={name: "5"})).load.options.get("notices", "")

    assert notices.startswith(f"{name} has no effect: {sentence}" if sentence else "")
    assert bool(notices) == bool(sentence)


def test_multi_model_endpoints_are_refused() -> None:
    with pytest.raises(SettingsError, match="this server serves one model"):
        make_spec(found(env={"SAGEMAKER_MULTI_MODEL": "true"}))


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "²", "1001"])
def test_a_variable_that_is_no_such_number_is_refused_by_its_name(value: str) -> None:
    with pytest.raises(SettingsError) as failed:
        make_spec(found(env={"SAGEMAKER_MODEL_SERVER_WORKERS": value}))

    assert str(failed.value) == (
        f"SAGEMAKER_MODEL_SERVER_WORKERS is {value!r}; expected a whole number from 1 to 1000."
    )
