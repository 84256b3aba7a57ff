"""Embeddings, sessions and stored responses of endpoints on a real platform with real small models."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from botocore.exceptions import ClientError

from .endpoints import PROMPT, delete_endpoint, invoke, make_endpoint
from .running import Running

pytestmark = pytest.mark.model

ECR = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
EMBEDDING_CONTAINERS = {
    "tei": (f"{ECR}/tei-cpu:2.0.1-tei1.8.2-cpu-py310-ubuntu22.04", {}),
    "toolkit": (
        f"{ECR}/huggingface-pytorch-inference:2.6.0-transformers4.49.0-cpu-py312-ubuntu22.04",
        {"HF_TASK": "feature-extraction"},
    ),
}


def test_embedding_images_answer_as_their_containers_do(platform: Running, minilm_path: Path) -> None:
    for name, (image, variables) in EMBEDDING_CONTAINERS.items():
        make_endpoint(platform, name, {"Image": image, "Environment": {"HF_MODEL_ID": str(minilm_path), **variables}})
    platform.until_in_service(*EMBEDDING_CONTAINERS)
    text = "A man is eating food."

    (vector,) = invoke(platform, "tei", {"inputs": text})
    assert len(vector) == 384
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
    ((rows,),) = invoke(platform, "toolkit", {"inputs": [text]})
    assert np.array(rows).shape == (8, 384), "five words and a full stop between [CLS] and [SEP]"
    mean = np.mean(rows, axis=0)
    assert mean / np.linalg.norm(mean) == pytest.approx(vector, abs=1e-5)
    assert invoke(platform, "toolkit", {"inputs": text}) == [rows]

    from openai import OpenAI

    with OpenAI(base_url=f"{platform.url}/v1", api_key=platform.key.secret) as client:
        answer = client.embeddings.create(model="tei", input=["Another text.", text])
    assert answer.data[1].embedding == pytest.approx(vector, abs=1e-6)
    for name in EMBEDDING_CONTAINERS:
        delete_endpoint(platform, name)


def test_a_stateful_session_is_opened_used_and_closed(platform: Running, endpoint: str) -> None:
    runtime = platform.client("sagemaker-runtime")

    def ask(body: object, session: str) -> dict[str, Any]:
        answer = runtime.invoke_endpoint(
            EndpointName=endpoint, ContentType="application/json", Body=json.dumps(body), SessionId=session
        )
        answer["Body"].close()
        return dict(answer)

    session = ask({"requestType": "NEW_SESSION"}, "NEW_SESSION")["NewSessionId"].partition(";")[0]
    ask(PROMPT, session)
    assert ask({"requestType": "CLOSE"}, session)["ClosedSessionId"] == session
    with pytest.raises(ClientError, match="session not found"):
        ask(PROMPT, session)


def test_openai_clients_continue_a_stored_response(platform: Running, endpoint: str) -> None:
    from openai import NotFoundError, OpenAI

    asked = {"model": endpoint, "max_output_tokens": 8, "temperature": 0}
    with OpenAI(base_url=f"{platform.url}/v1", api_key=platform.key.secret) as client:
        first = client.responses.create(**asked, input="The capital of France is Paris.")
        following = {**asked, "input": "And of Italy?", "previous_response_id": first.id}
        whole = client.responses.create(**following)
        *_, end = client.responses.create(**following, stream=True)
        question = {"role": "user", "content": "And of Italy?"}
        sent = client.responses.create(
            **asked, input=[{"role": "user", "content": "The capital of France is Paris."}, *first.output, question]
        )
        assert whole.output_text == end.response.output_text == sent.output_text
        assert whole.usage.input_tokens == sent.usage.input_tokens
        assert client.responses.retrieve(end.response.id).previous_response_id == first.id
        items = client.responses.input_items.list(whole.id, order="asc").data
        assert [item.role for item in items] == ["user", "assistant", "user"]
        client.responses.delete(first.id)
        with pytest.raises(NotFoundError):
            client.responses.retrieve(first.id)
