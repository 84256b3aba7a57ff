"""The archive of the article about LMI 0.26 with a `model.py` for pre- and postprocessing, on the platform."""

import io
import json
from pathlib import Path

import pytest

from tests.e2e.test_formatters import MODEL, PROPERTIES

from .endpoints import archive, delete_endpoint, make_endpoint
from .running import Running

pytestmark = pytest.mark.model

IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.26.0-tensorrtllm0.7.1-cu122"
GLOSSARY = b'def expand(text):\n    return text.replace("FR", "France")\n'


def test_an_archive_with_formatters_is_deployed_by_djls_image_and_streams_their_lines(
    platform: Running, smollm2_path: Path
) -> None:
    files = {
        "model.py": MODEL.encode(),
        "serving.properties": PROPERTIES.format(model=smollm2_path).encode(),
        "glossary.py": GLOSSARY,
    }
    s3 = platform.client("s3")
    s3.create_bucket(Bucket="formatters")
    s3.upload_fileobj(io.BytesIO(archive(files)), "formatters", "model.tar.gz")
    make_endpoint(platform, "formatters", {"Image": IMAGE, "ModelDataUrl": "s3://formatters/model.tar.gz"})
    platform.until_in_service("formatters")

    body = {"inputs": "The capital of FR is", "parameters": {"max_new_tokens": 4, "details": True}}
    response = platform.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
        EndpointName="formatters", Body=json.dumps(body), ContentType="application/json"
    )
    parts = [event["PayloadPart"]["Bytes"] for event in response["Body"]]

    lines = [json.loads(line) for line in b"".join(parts).splitlines()]
    assert [len(lines), len(parts)] == [4, 4]
    assert lines[0]["token"] == " Paris"
    assert (lines[-1]["finish_reason"], lines[-1]["prompt"]) == ("length", "The capital of France is")
    events = platform.client("logs").filter_log_events(logGroupName="/aws/sagemaker/Endpoints/formatters")["events"]
    assert any("formatters.ready" in event["message"] for event in events)
    delete_endpoint(platform, "formatters")
