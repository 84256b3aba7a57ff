from common import MODEL, QUESTION, SERVER, expect, step
from ollama import Client

client = Client(host=SERVER)
messages = [{"role": "user", "content": QUESTION}]

with step("list"):
    expect(client.list().models, "models")
with step("show"):
    expect(client.show(MODEL).details, "details")
with step("chat"):
    expect(client.chat(model=MODEL, messages=messages, options={"num_predict": 32}).message.content, "text")
with step("chat, streamed"):
    stream = client.chat(model=MODEL, messages=messages, options={"num_predict": 32}, stream=True)
    expect("".join(part.message.content for part in stream), "text")
with step("generate"):
    expect(client.generate(model=MODEL, prompt=QUESTION, options={"num_predict": 32}).response, "text")
with step("structured output"):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
    answer = client.chat(model=MODEL, messages=messages, format=schema, options={"num_predict": 64})
    expect("city" in answer.message.content, "a city")
