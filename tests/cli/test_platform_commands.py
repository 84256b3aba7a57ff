"""Platform commands without a platform: their pure parts, and their error messages."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.deploy import container_of, endpoint_name
from headrace.cli.deployed import stage_of
from headrace.cli.endpoints import variant_rows
from headrace.cli.group import UserFailed
from headrace.cli.invoke import request_body
from headrace.cli.tables import age, labelled, table
from headrace.wire.aws import services, validation


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("smollm2", "smollm2"),
        ("Qwen/Qwen3-0.6B", "Qwen3-0-6B"),
        ("/models/my llama/", "my-llama"),
        ("./SmolLM2-135M.Q4_1.gguf", "SmolLM2-135M-Q4-1"),
        ("s3://bucket/prefix/model.tar.gz", "model"),
        ("日本", "model"),
    ],
)
def test_an_endpoint_is_named_after_its_model(model: str, name: str) -> None:
    assert endpoint_name(model) == name


@given(st.text(min_size=1))
def test_every_name_is_one_that_aws_allows(model: str) -> None:
    operation = services.operation("sagemaker", "CreateModel")
    validation.check(
        operation, {"ModelName": endpoint_name(model), "ExecutionRoleArn": "arn:aws:iam::000000000000:role/r"}
    )


def test_a_model_becomes_a_container(tmp_path: Path) -> None:
    image = "image"
    assert container_of("smollm2", {"A": "b"}, image)["Environment"] == {"HF_MODEL_ID": "smollm2", "A": "b"}
    assert container_of(str(tmp_path), {}, image)["Environment"] == {"HF_MODEL_ID": str(tmp_path)}
    assert container_of("s3://b/m.tar.gz", {}, image)["ModelDataUrl"] == "s3://b/m.tar.gz"
    prefix = container_of("s3://b/folder", {}, image)["ModelDataSource"]["S3DataSource"]
    assert prefix == {"S3Uri": "s3://b/folder/", "S3DataType": "S3Prefix", "CompressionType": "None"}


def test_a_local_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    assert container_of("model", {}, "i")["Environment"]["HF_MODEL_ID"] == str(tmp_path / "model")


def test_the_progress_of_an_endpoint_fits_into_a_line() -> None:
    variant = {
        "VariantName": "AllTraffic",
        "CurrentInstanceCount": 0,
        "DesiredInstanceCount": 2,
        "VariantStatus": [{"Status": "Creating", "StatusMessage": "Loading the model."}],
    }
    seen = {"EndpointStatus": "Creating", "ProductionVariants": [variant]}
    assert stage_of(seen) == "Creating, Loading the model., 0 of 2 ready"
    assert stage_of({"EndpointStatus": "Creating"}) == "Creating"


def test_each_line_of_a_variants_message_has_a_line_of_its_own():
    message = "w runs on GPU 0.\nNot as on SageMaker: A. B."
    variant = {"VariantName": "v", "VariantStatus": [{"Status": "ActivatingTraffic", "StatusMessage": message}]}
    rows = variant_rows(variant)
    assert rows[-3:] == [
        ("  status", "ActivatingTraffic"),
        ("", "w runs on GPU 0."),
        ("", "Not as on SageMaker: A. B."),
    ]
    assert stage_of({"EndpointStatus": "InService", "ProductionVariants": [variant]}) == (
        "InService, w runs on GPU 0. Not as on SageMaker: A. B."
    )


def test_ages_and_tables_are_short() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    ages = [age(now - timedelta(seconds=seconds), now) for seconds in (-5, 5, 65, 7300, 200_000)]
    assert ages == ["0s", "5s", "1m", "2h", "2d"]
    assert table([("A", "B"), ("long", "x")]) == "A     B\nlong  x"
    assert labelled([("name", "a"), ("reason", ""), ("copies", 0)]) == "name    a\ncopies  0"


def test_a_prompt_becomes_a_request() -> None:
    body = json.loads(request_body(b"The sea", ("max_new_tokens=5", "stop=end"), is_streamed=True))
    parameters = {"return_full_text": False, "max_new_tokens": 5, "stop": "end"}
    assert body == {"inputs": "The sea", "parameters": parameters, "stream": True}
    assert request_body(b'{"inputs": 1}', (), is_streamed=True) == b'{"inputs": 1}'
    assert json.loads(request_body(b"[1]", (), is_streamed=False))["inputs"] == "[1]"


def test_a_body_of_a_type_is_sent_unchanged() -> None:
    assert request_body(b"\x93NUMPY", (), is_streamed=False, content_type="application/x-npy") == b"\x93NUMPY"
    with pytest.raises(UserFailed, match="--parameter cannot be combined with --content-type"):
        request_body(b"1,2", ("a=1",), is_streamed=False, content_type="text/csv")


@pytest.mark.parametrize("parameters", [("a",), ("=b",)])
def test_a_parameter_without_a_name_or_value_is_refused(parameters: tuple[str, ...]) -> None:
    with pytest.raises(UserFailed, match="NAME=VALUE"):
        request_body(b"text", parameters, is_streamed=False)
    with pytest.raises(UserFailed, match="cannot be combined with a JSON prompt"):
        request_body(b"{}", parameters, is_streamed=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls",),
        ("status",),
        ("env",),
        ("describe", "a"),
        ("rm", "a"),
        ("logs", "a"),
        ("scale", "a", "--describe"),
        ("invoke", "a", "b"),
        ("deploy", "smollm2"),
    ],
)
def test_without_a_platform_the_error_is_one_sentence(headrace, arguments: tuple[str, ...], tmp_path: Path) -> None:
    env = dict.fromkeys(name for name in os.environ if name.startswith("AWS_"))
    result = headrace(*arguments, "--url", "http://127.0.0.1:9", env={**env, "HEADRACE_UP_DATA_DIR": str(tmp_path)})
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert "No platform is running at http://127.0.0.1:9" in result.stderr
    assert "headrace up" in result.stderr


def test_env_unset_works_without_a_platform(headrace) -> None:
    result = headrace("env", "--unset", env={"_HEADRACE_ENV": "AWS_REGION", "_HEADRACE_OLD_AWS_REGION": "x"})
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == 'export AWS_REGION="$_HEADRACE_OLD_AWS_REGION"'


def test_keys_are_made_listed_and_removed(headrace, tmp_path: Path) -> None:
    made = headrace("keys", "create", "--data-dir", tmp_path, "--note", "for CI")
    lines = dict(line.split("=", 1) for line in made.stdout.splitlines())
    listed = headrace("keys", "ls", "--data-dir", tmp_path)
    assert lines["AWS_ACCESS_KEY_ID"] in listed.stdout
    assert "for CI" in listed.stdout
    assert lines["AWS_SECRET_ACCESS_KEY"] not in listed.stdout + listed.stderr
    assert headrace("keys", "rm", lines["AWS_ACCESS_KEY_ID"], "--data-dir", tmp_path).exit_code == 0
    gone = headrace("keys", "rm", lines["AWS_ACCESS_KEY_ID"], "--data-dir", tmp_path)
    assert gone.exit_code == 2
    assert "headrace keys ls" in gone.stderr


def test_the_worker_command_exists_but_is_not_listed(headrace) -> None:
    assert "\n  worker " not in headrace("--help").stdout
    assert headrace("worker", "--help").exit_code == 0
