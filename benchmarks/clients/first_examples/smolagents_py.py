from common import MODEL, QUESTION, SERVER, expect, step
from smolagents import ChatMessage, OpenAIModel

model = OpenAIModel(model_id=MODEL, api_base=f"{SERVER}/v1", api_key="-", max_tokens=32)
messages = [ChatMessage(role="user", content=[{"type": "text", "text": QUESTION}])]

with step("generate"):
    expect(model.generate(messages).content, "text")
with step("generate_stream"):
    expect("".join(delta.content or "" for delta in model.generate_stream(messages)), "text")
