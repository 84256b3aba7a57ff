from common import MODEL, QUESTION, SERVER, expect, step
from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=f"{SERVER}/v1", api_key="-")
messages = [{"role": "user", "content": QUESTION}]


class City(BaseModel):
    name: str
    country: str


with step("models"):
    expect(MODEL in [model.id for model in client.models.list()], "the model in the list")
with step("chat"):
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=32)
    expect(answer.choices[0].message.content, "text")
with step("chat, streamed"):
    stream = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=32, stream=True)
    expect("".join(chunk.choices[0].delta.content or "" for chunk in stream), "text")
with step("responses"):
    expect(client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=32).output_text, "text")
with step("responses, streamed"), client.responses.stream(model=MODEL, input=QUESTION, max_output_tokens=32) as events:
    expect([event for event in events if event.type == "response.output_text.delta"], "deltas")
with step("structured output"):
    parsed = client.chat.completions.parse(model=MODEL, messages=messages, response_format=City, max_tokens=96)
    expect(isinstance(parsed.choices[0].message.parsed, City), "a City")
with step("tools"):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=64
    )
    expect(answer.choices[0].message.tool_calls[0].function.name == "weather", "a call")
with step("completions"):
    expect(
        client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=8).choices[0].text, "text"
    )
