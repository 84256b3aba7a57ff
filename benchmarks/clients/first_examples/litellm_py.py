import litellm
from common import MODEL, PLATFORM, QUESTION, SERVER, expect, step

messages = [{"role": "user", "content": QUESTION}]
v1 = {"api_base": f"{SERVER}/v1", "api_key": "-"}

with step("openai/"):
    answer = litellm.completion(model=f"openai/{MODEL}", messages=messages, max_tokens=32, **v1)
    expect(answer.choices[0].message.content, "text")
with step("openai/, streamed"):
    stream = litellm.completion(model=f"openai/{MODEL}", messages=messages, max_tokens=32, stream=True, **v1)
    expect("".join(chunk.choices[0].delta.content or "" for chunk in stream), "text")
with step("openai/ responses"):
    expect(litellm.responses(model=f"openai/{MODEL}", input=QUESTION, max_output_tokens=32, **v1).output, "items")
with step("hosted_vllm/"):
    answer = litellm.completion(model=f"hosted_vllm/{MODEL}", messages=messages, max_tokens=32, **v1)
    expect(answer.choices[0].message.content, "text")
with step("ollama_chat/"):
    answer = litellm.completion(model=f"ollama_chat/{MODEL}", messages=messages, max_tokens=32, api_base=SERVER)
    expect(answer.choices[0].message.content, "text")
with step("anthropic/"):
    answer = litellm.completion(
        model=f"anthropic/{MODEL}", messages=messages, max_tokens=32, api_base=SERVER, api_key="-"
    )
    expect(answer.choices[0].message.content, "text")
with step("sagemaker_chat/"):
    url = f"{PLATFORM}/endpoints/{MODEL}/invocations"
    answer = litellm.completion(
        model=f"sagemaker_chat/{MODEL}", messages=messages, max_tokens=32, sagemaker_base_url=url
    )
    expect(answer.choices[0].message.content, "text")
