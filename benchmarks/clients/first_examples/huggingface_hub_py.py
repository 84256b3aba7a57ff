from common import MODEL, QUESTION, SERVER, expect, step
from huggingface_hub import InferenceClient

client = InferenceClient(base_url=SERVER)
messages = [{"role": "user", "content": QUESTION}]

with step("chat_completion"):
    answer = client.chat_completion(messages, model=None, max_tokens=32)
    expect(answer.choices[0].message.content, "text")
with step("chat_completion, streamed"):
    stream = client.chat_completion(messages, max_tokens=32, stream=True)
    expect("".join(chunk.choices[0].delta.content or "" for chunk in stream), "text")
with step("text_generation"):
    text = InferenceClient(model=SERVER).text_generation("The capital of France is", max_new_tokens=8)
    expect(text, "text")
with step("text_generation, details"):
    details = InferenceClient(model=SERVER).text_generation("The capital of", max_new_tokens=4, details=True)
    expect(len(details.details.tokens) == 4, "four tokens")
with step("response_format"):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    answer = client.chat_completion(messages, max_tokens=64, response_format=form)
    expect("city" in answer.choices[0].message.content, MODEL)
