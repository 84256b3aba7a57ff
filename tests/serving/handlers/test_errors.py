"""Requests that user code does not answer are answered as the server of the model's image answers them."""

import json
from pathlib import Path

import pytest

from headrace.serving.handlers.errors import Refusal, refusal
from headrace.serving.handlers.spec import HandlerSpec
from headrace_handler.contract import Load

NO_WORKER = (
    'Model "m" has no worker to serve inference request. Please use scale workers API to add workers. If this is a '
    "sequence inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)
NGINX = (
    "<html>\r\n<head><title>{0}</title></head>\r\n<body>\r\n<center><h1>{0}</h1></center>\r\n"
    "<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
)


def spec_of(contract, profile: str = "") -> HandlerSpec:
    load = Load(model_name="m", model_dir=Path("/m"), entry="", options={"profile": profile} if profile else {})
    return HandlerSpec(contract=contract, load=load)


@pytest.mark.parametrize(
    ("contract", "profile", "reason", "exit_code", "status", "kind", "message"),
    [
        (
            "djl",
            "",
            Refusal.QUEUE_FULL,
            None,
            503,
            "WlmCapacityException",
            "Worker queue capacity exceeded for model: m (READY)",
        ),
        ("djl", "", Refusal.LATE, None, 503, "WlmException", "java.util.concurrent.TimeoutException"),
        ("torchserve", "", Refusal.QUEUE_FULL, None, 503, "ServiceUnavailableException", NO_WORKER),
        ("torchserve", "", Refusal.LOST, -9, 507, "InternalServerException", "Worker died."),
        ("sagemaker", "pytorch", Refusal.QUEUE_FULL, None, 503, "ServiceUnavailableException", NO_WORKER),
        ("sagemaker", "pytorch", Refusal.LOST, -9, 507, "InternalServerException", "Worker died."),
        ("sagemaker", "pytorch", Refusal.LATE, -9, 500, "InternalServerException", "Worker died."),
        (
            *("sagemaker", "huggingface", Refusal.QUEUE_FULL, None, 503, "ServiceUnavailableException"),
            "No worker is available to serve request: m",
        ),
        ("sagemaker", "huggingface", Refusal.LOST, -9, 500, "InternalServerException", "Worker died."),
        ("sagemaker", "generic", Refusal.LATE, None, 500, "InternalServerException", "Worker died."),
    ],
)
def test_each_java_server_has_its_own_words(contract, profile, reason, exit_code, status, kind, message) -> None:
    response = refusal(spec_of(contract, profile), reason, exit_code=exit_code)

    assert response.status == status
    assert json.loads(response.body) == {"code": status, "type": kind, "message": message}
    assert response.headers == [("content-type", "application/json")]


@pytest.mark.parametrize("profile", ["sklearn", "xgboost"])
@pytest.mark.parametrize(
    ("reason", "title"),
    [
        (Refusal.LOST, "502 Bad Gateway"),
        (Refusal.LATE, "502 Bad Gateway"),
        (Refusal.QUEUE_FULL, "503 Service Temporarily Unavailable"),
        (Refusal.NOT_READY, "503 Service Temporarily Unavailable"),
    ],
)
def test_images_with_gunicorn_answer_by_the_pages_of_their_proxy(profile: str, reason: Refusal, title: str) -> None:
    response = refusal(spec_of("sagemaker", profile), reason)

    assert (response.status, response.body.decode()) == (int(title[:3]), NGINX.format(title))
    assert response.headers == [("content-type", "text/html")]
