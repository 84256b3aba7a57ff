import json

from common import MODEL, expect, step
from langchain_aws.llms import SagemakerEndpoint
from langchain_aws.llms.sagemaker_endpoint import LLMContentHandler


class Handler(LLMContentHandler):
    content_type = "application/json"
    accepts = "application/json"

    def transform_input(self, prompt: str, model_kwargs: dict[str, object]) -> bytes:
        return json.dumps({"inputs": prompt, "parameters": {**model_kwargs, "return_full_text": False}}).encode()

    def transform_output(self, output: object) -> str:
        answer = json.loads(output.read())  # type: ignore[attr-defined]
        return str(answer[0]["generated_text"])


with step("SagemakerEndpoint"):
    model = SagemakerEndpoint(
        endpoint_name=MODEL, region_name="us-east-1", content_handler=Handler(), model_kwargs={"max_new_tokens": 24}
    )
    expect(model.invoke("The capital of France is"), "text")
