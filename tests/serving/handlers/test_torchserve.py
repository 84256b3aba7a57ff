"""TorchServe's manifest, configuration and variables as the description of a handler."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import SettingsError
from headrace.serving.handlers.found import Found, find_model
from headrace.serving.handlers.torchserve import make_spec, model_version, without_effect

MANIFEST = {"runtime": "python", "model": {"modelName": "noop", "handler": "service.py", "modelVersion": "1.11"}}
ARTICLE_CONFIG = {
    "minWorkers": 1,
    "maxWorkers": 1,
    "maxBatchDelay": 100,
    "responseTimeout": 10800,
    "batchSize": 16,
    "handler": {"model_checkpoint_dir": "llama-2-13b-split", "amp": "bf16", "tp_degree": 12, "max_length": 100},
    "micro_batching": {
        "micro_batch_size": 1,
        "parallelism": {"preprocess": 2, "inference": 1, "postprocess": 2},
    },
}


def found(config: dict[str, Any] | None = None, **given: Any) -> Found:
    return Found(
        model_name="m",
        root=Path("/models/m"),
        code=Path("/models/m"),
        model_config=config or {},
        manifest=MANIFEST,
        **given,
    )


def test_the_articles_configuration_is_applied() -> None:
    spec = make_spec(found(ARTICLE_CONFIG, family="torchserve"))

    assert (spec.min_workers, spec.max_workers, spec.batch_size, spec.max_batch_delay_ms) == (1, 1, 16, 100)
    assert (spec.call_timeout_s, spec.chunk_timeout_s) == (10800, 10800)
    assert spec.load.model_config["micro_batching"]["micro_batch_size"] == 1
    assert spec.load.entry == "service.py"
    assert spec.load.options["decode_input_request"] == "false"


def test_defaults_are_those_of_torchserve_with_one_worker() -> None:
    spec = make_spec(found())

    assert (spec.batch_size, spec.max_batch_delay_ms, spec.queue_size) == (1, 100, 100)
    assert (spec.load_timeout_s, spec.call_timeout_s, spec.restart.max_retry_s) == (120, 120, 300)
    assert (spec.min_workers, spec.max_workers) == (1, 1)
    assert spec.load.model_name == "noop"
    assert spec.load.options["decode_input_request"] == "true"
    assert model_version(MANIFEST) == "1.11"


def test_variables_of_the_image_count_and_a_configuration_counts_more() -> None:
    env = {
        "SAGEMAKER_TS_BATCH_SIZE": "4",
        "SAGEMAKER_TS_MAX_BATCH_DELAY": "7",
        "SAGEMAKER_TS_MIN_WORKERS": "2",
        "SAGEMAKER_TS_MAX_WORKERS": "3",
        "SAGEMAKER_TS_RESPONSE_TIMEOUT": "9",
        "TS_JOB_QUEUE_SIZE": "5",
    }
    spec = make_spec(found(env=env, family="torchserve"))
    assert (spec.batch_size, spec.max_batch_delay_ms, spec.min_workers, spec.max_workers) == (4, 7, 2, 3)
    assert (spec.call_timeout_s, spec.queue_size) == (9, 5)

    spec = make_spec(found({"batchSize": 8}, env=env, family="torchserve"))
    assert (spec.batch_size, spec.max_batch_delay_ms, spec.call_timeout_s) == (8, 7, 120)


def test_an_image_has_a_shorter_response_timeout_unless_there_is_a_configuration() -> None:
    assert make_spec(found(family="torchserve")).call_timeout_s == 60
    assert make_spec(found({"batchSize": 1}, family="torchserve")).call_timeout_s == 120


@pytest.mark.parametrize(
    ("config", "workers"),
    [
        ({"minWorkers": 2}, (1, 1)),
        ({"minWorkers": 2, "maxWorkers": 1}, (1, 1)),
        ({"minWorkers": 2, "maxWorkers": 4}, (2, 4)),
    ],
)
def test_worker_counts_apply_only_together(config: dict[str, Any], workers: tuple[int, int]) -> None:
    spec = make_spec(found(config))

    assert (spec.min_workers, spec.max_workers) == workers


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"batchSize": 0}, "batchSize is 0; expected a whole number from 1"),
        ({"batchSize": "many"}, "batchSize is 'many'"),
        ({"batchSize": True}, "batchSize is True"),
        ({"responseTimeout": -1}, "responseTimeout is -1"),
        ({"asyncCommunication": True}, "asyncCommunication is not supported"),
        ({"torchrun": {"nproc-per-node": 4}}, "torchrun is not supported"),
        ({"sequenceBatching": True, "maxWorkers": 2}, "maxWorkers is 2 with sequenceBatching; expected 1"),
    ],
)
def test_a_setting_that_cannot_be_applied_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_spec(found(config))


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"runtime": "python"}, "Missing Model entry in manifest file."),
        ({"model": {"handler": "x"}}, "Model name is not defined."),
        ({"model": {"modelName": "a/b", "modelVersion": "1"}}, "modelName is 'a/b'"),
        ({"model": {"modelName": "a"}}, "Model version is not defined."),
        ({"runtime": "java", "model": {"modelName": "a", "modelVersion": "1"}}, "Runtime is not defined or invalid"),
        ({"model": {"modelName": "a", "modelVersion": "1"}}, "names no handler"),
    ],
)
def test_an_incomplete_manifest_is_refused_with_torchserves_text(manifest: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_spec(Found(model_name="m", root=Path("/m"), code=Path("/m"), manifest=manifest))


def test_a_folder_without_a_manifest_needs_a_default_handler() -> None:
    model = Found(
        model_name="m", root=Path("/m"), code=Path("/m"), env={"TS_DEFAULT_SERVICE_HANDLER": "service:handle"}
    )

    assert make_spec(model).load.entry == "service:handle"


def test_settings_without_effect_are_named() -> None:
    config = {"useVenv": True, "deviceIds": [1], "batchSize": 1}

    assert len(without_effect(config)) == 2
    assert "deviceIds has no effect" in make_spec(found(config)).load.options["notices"]


def test_a_folder_is_read_as_it_was_packed(tmp_path: Path) -> None:
    (tmp_path / "MAR-INF").mkdir()
    manifest = {"model": MANIFEST["model"] | {"configFile": "conf.yaml"}}  # type: ignore[operator]
    (tmp_path / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    (tmp_path / "conf.yaml").write_text("batchSize: 3\n")

    assert make_spec(find_model(tmp_path, model_name="m", env={})).batch_size == 3


@given(
    st.dictionaries(
        st.sampled_from([*ARTICLE_CONFIG, "sequenceBatching", "jobQueueSize"]), st.none() | st.integers() | st.text()
    )
)
def test_any_configuration_is_a_spec_or_refused(config: dict[str, Any]) -> None:
    try:
        spec = make_spec(found(config))
    except SettingsError:
        return
    assert 1 <= spec.min_workers <= spec.max_workers
    assert spec.batch_size >= 1
