"""Requests at zero on a real platform with the real small model: they wait, one copy wakes, and none is lost."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import plain_http
from tests.waiting import WAIT_S

from .running import IMAGE, Running, until

pytestmark = pytest.mark.model

NAME = "sleeper"
ROLE = "arn:aws:iam::000000000000:role/any"
BODY = {"inputs": "The sea is", "parameters": {"max_new_tokens": 4, "details": True}}
COMPLETION = {"prompt": "The sea is", "max_tokens": 4, "temperature": 0}


def make_variant(running: Running, model: Path) -> None:
    sagemaker = running.client("sagemaker")
    environment = {"HF_MODEL_ID": str(model), "LMCACHE_LOCAL_DISK": "file:///tmp/lmcache"}
    container = {"Image": IMAGE, "Environment": environment}
    sagemaker.create_model(ModelName=NAME, PrimaryContainer=container, ExecutionRoleArn=ROLE)
    production = {"VariantName": "v", "ModelName": NAME, "InitialInstanceCount": 1, "InstanceType": "ml.g5.2xlarge"}
    sagemaker.create_endpoint_config(EndpointConfigName=NAME, ProductionVariants=[production])
    sagemaker.create_endpoint(EndpointName=NAME, EndpointConfigName=NAME)
    until(lambda: count_of(running) == 1, "it is in service")


def count_of(running: Running) -> int | None:
    """Instances, once the endpoint has settled."""
    described = running.client("sagemaker").describe_endpoint(EndpointName=NAME)
    assert described["EndpointStatus"] != "Failed", described
    (variant,) = described["ProductionVariants"]
    return int(variant["CurrentInstanceCount"]) if described["EndpointStatus"] == "InService" else None


def to_zero(running: Running) -> None:
    until(lambda: count_of(running) is not None, "it may be scaled")
    running.client("sagemaker").update_endpoint_weights_and_capacities(
        EndpointName=NAME, DesiredWeightsAndCapacities=[{"VariantName": "v", "DesiredInstanceCount": 0}]
    )
    until(lambda: count_of(running) == 0, "it sleeps")


def invoke(running: Running) -> str:
    response = running.client("sagemaker-runtime").invoke_endpoint(
        EndpointName=NAME, Body=json.dumps(BODY), ContentType="application/json"
    )
    with response["Body"] as stream:
        return str(json.loads(stream.read())[0]["generated_text"]).removeprefix("The sea is")


def stream(running: Running) -> str:
    response = running.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
        EndpointName=NAME, Body=json.dumps({**BODY, "stream": True}), ContentType="application/json"
    )
    parts = [event["PayloadPart"]["Bytes"].decode() for event in response["Body"]]
    response["Body"].close()
    return "".join(json.loads(part.removeprefix("data:"))["token"]["text"] for part in parts if part.strip())


def complete(running: Running) -> str:
    url = f"{running.url}/v1/completions"
    asked = {**COMPLETION, "model": NAME}
    answer = plain_http.post(url, json=asked, headers=running.bearer, timeout=WAIT_S, trust_env=False)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def complete_stream(running: Running) -> str:
    url, text = f"{running.url}/endpoints/{NAME}/openai/v1/completions", ""
    body = {**COMPLETION, "model": NAME, "stream": True}
    with plain_http.stream("POST", url, json=body, headers=running.bearer, timeout=WAIT_S, trust_env=False) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                text += "".join(choice["text"] for choice in json.loads(line.removeprefix("data: "))["choices"])
    return text


@pytest.fixture(scope="module")
def sleeper(platform: Running, smollm2_path: Path) -> Iterator[Running]:
    make_variant(platform, smollm2_path)
    yield platform
    platform.client("sagemaker").delete_endpoint(EndpointName=NAME)


@pytest.mark.parametrize("number", range(3))
def test_no_request_at_zero_is_lost(sleeper: Running, number: int) -> None:
    to_zero(sleeper)
    ways: list[Any] = [invoke, stream, complete, complete_stream] * 2
    with ThreadPoolExecutor(len(ways)) as pool:
        texts = [asking.result(WAIT_S) for asking in [pool.submit(way, sleeper) for way in ways]]
    assert len(set(texts)) == 1, texts
    assert texts[0].strip()
    until(lambda: count_of(sleeper) == 1, "one copy was woken")


def test_a_woken_copy_reads_the_prefixes_of_the_one_before(sleeper: Running) -> None:
    body = {**COMPLETION, "prompt": "The tide comes in and the tide goes out. " * 10, "model": NAME}

    def ask() -> tuple[str, int]:
        answer = plain_http.post(
            f"{sleeper.url}/v1/completions", json=body, headers=sleeper.bearer, timeout=WAIT_S, trust_env=False
        ).json()
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    text, cached = ask()
    assert cached == 0
    to_zero(sleeper)
    assert ask() == (text, 96)


def test_a_request_whose_client_gave_up_is_not_run(sleeper: Running) -> None:
    to_zero(sleeper)
    with (
        plain_http.Client(
            base_url=sleeper.url,
            headers=sleeper.bearer,
            trust_env=False,
            timeout=httpx.Timeout(WAIT_S, read=0.2),
        ) as quick,
        pytest.raises(httpx.ReadTimeout),
    ):
        quick.post(f"/endpoints/{NAME}/invocations", json=BODY)
    until(lambda: held(sleeper) == 0, "no request waits")
    assert invoke(sleeper).strip(), "it woke all the same, and answers others"


def held(running: Running) -> float:
    page = plain_http.get(f"{running.url}/metrics", headers=running.bearer, trust_env=False, timeout=WAIT_S)
    for line in page.text.splitlines():
        if line.startswith("headrace_gateway_requests_held "):
            return float(line.split()[1])
    raise AssertionError("no such metric")


def copies_of(running: Running) -> int | None:
    """Copies of the component, once it has settled."""
    described = running.client("sagemaker").describe_inference_component(InferenceComponentName="napper")
    assert described["InferenceComponentStatus"] != "Failed", described
    is_settled = described["InferenceComponentStatus"] == "InService"
    return int(described["RuntimeConfig"]["CurrentCopyCount"]) if is_settled else None


@pytest.fixture(scope="module")
def napper(platform: Running, smollm2_path: Path) -> Iterator[Running]:
    """An inference component `napper` with one copy."""
    sagemaker = platform.client("sagemaker")
    container = {"Image": IMAGE, "Environment": {"HF_MODEL_ID": str(smollm2_path)}}
    sagemaker.create_model(ModelName="napper", PrimaryContainer=container, ExecutionRoleArn=ROLE)
    host = {"VariantName": "v", "InitialInstanceCount": 1, "InstanceType": "ml.g5.2xlarge"}
    sagemaker.create_endpoint_config(EndpointConfigName="naps", ProductionVariants=[host], ExecutionRoleArn=ROLE)
    sagemaker.create_endpoint(EndpointName="naps", EndpointConfigName="naps")
    platform.until_in_service("naps")
    sagemaker.create_inference_component(
        InferenceComponentName="napper",
        EndpointName="naps",
        VariantName="v",
        Specification={"ModelName": "napper", "ComputeResourceRequirements": {"MinMemoryRequiredInMb": 1024}},
        RuntimeConfig={"CopyCount": 1},
    )
    until(lambda: copies_of(platform) == 1, "the component is in service")
    yield platform
    sagemaker = platform.client("sagemaker")
    sagemaker.delete_inference_component(InferenceComponentName="napper")
    until(lambda: not sagemaker.list_inference_components()["InferenceComponents"], "the component is gone")
    sagemaker.delete_endpoint(EndpointName="naps")


def test_a_model_that_does_not_fit_into_its_components_memory_fails_with_the_sum(napper: Running) -> None:
    sagemaker = napper.client("sagemaker")
    need = {"NumberOfCpuCoresRequired": 1, "MinMemoryRequiredInMb": 128, "MaxMemoryRequiredInMb": 128}
    sagemaker.create_inference_component(
        InferenceComponentName="tight",
        EndpointName="naps",
        VariantName="v",
        Specification={"ModelName": "napper", "ComputeResourceRequirements": need},
        RuntimeConfig={"CopyCount": 1},
    )

    def failure() -> str:
        return str(sagemaker.describe_inference_component(InferenceComponentName="tight").get("FailureReason", ""))

    try:
        until(failure, "the component has failed")
        assert re.search(
            r"Weights \d+ MiB \+ workspace .* do not fit into the 128 MiB that max_memory_bytes", failure()
        )
    finally:
        sagemaker.delete_inference_component(InferenceComponentName="tight")
        until(lambda: len(sagemaker.list_inference_components()["InferenceComponents"]) == 1, "it is gone")


def test_a_component_without_copies_is_woken_by_its_name(napper: Running) -> None:
    napper.client("sagemaker").update_inference_component_runtime_config(
        InferenceComponentName="napper", DesiredRuntimeConfig={"CopyCount": 0}
    )
    until(lambda: copies_of(napper) == 0, "it sleeps")

    def by_header() -> str:
        response = napper.client("sagemaker-runtime").invoke_endpoint(
            EndpointName="naps", InferenceComponentName="napper", Body=json.dumps(BODY), ContentType="application/json"
        )
        with response["Body"] as body:
            return str(json.loads(body.read())[0]["generated_text"]).removeprefix("The sea is")

    def as_model() -> str:
        url = f"{napper.url}/v1/completions"
        asked = {**COMPLETION, "model": "napper"}
        answer = plain_http.post(url, json=asked, headers=napper.bearer, timeout=WAIT_S, trust_env=False)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    with ThreadPoolExecutor(4) as pool:
        texts = [asking.result(WAIT_S) for asking in [pool.submit(way) for way in (by_header, as_model) * 2]]
    assert len(set(texts)) == 1
    until(lambda: copies_of(napper) == 1, "one copy was woken")


def test_the_console_and_cloudwatch_show_a_component(napper: Running) -> None:
    """The console shows the instance of the copy, which no AWS operation returns; CloudWatch the number of copies."""
    shown = plain_http.get(
        f"{napper.url}/console/api/components",
        params={"endpoint": "naps"},
        headers=napper.bearer,
        trust_env=False,
        timeout=WAIT_S,
    ).json()
    assert [component["name"] for component in shown["components"]] == ["napper"]
    [host] = shown["hosts"]
    assert (host["variant"], host["instance_type"], len(host["instances"])) == ("v", "ml.g5.2xlarge", 1)
    assert {copy["component"] for copy in host["instances"][0]["copies"]} <= {"napper"}
    cloudwatch = napper.client("cloudwatch")
    named = {
        "Namespace": "/aws/sagemaker/InferenceComponents",
        "Dimensions": [{"Name": "InferenceComponentName", "Value": "napper"}],
    }

    def names() -> set[str]:
        return {metric["MetricName"] for metric in cloudwatch.list_metrics(**named)["Metrics"]}

    until(lambda: names() >= {"CurrentCopyCount", "DesiredCopyCount"}, "its copies were counted")
