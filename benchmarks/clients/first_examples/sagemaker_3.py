import json

from common import MODEL, expect, step
from sagemaker.core.resources import Endpoint

body = json.dumps({"inputs": "The capital of France is", "parameters": {"max_new_tokens": 16}})

with step("Endpoint.get"):
    expect(Endpoint.get(endpoint_name=MODEL).endpoint_status == "InService", "InService")
with step("Endpoint.invoke"):
    answer = Endpoint.get(endpoint_name=MODEL).invoke(body=body, content_type="application/json")
    expect(json.loads(answer.body.read())[0]["generated_text"], "text")
