import asyncio
import json

import aioboto3
from common import MODEL, expect, step


async def invoke() -> str:
    async with aioboto3.Session().client("sagemaker-runtime") as runtime:
        body = json.dumps({"inputs": "The capital of France is", "parameters": {"max_new_tokens": 8}})
        answer = await runtime.invoke_endpoint(EndpointName=MODEL, ContentType="application/json", Body=body)
        return str(json.loads(await answer["Body"].read())[0]["generated_text"])


with step("invoke_endpoint"):
    expect(asyncio.run(invoke()), "text")
