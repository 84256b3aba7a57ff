from anthropic import Anthropic
from common import MODEL, QUESTION, SERVER, expect, step

client = Anthropic(base_url=SERVER, api_key="-")
messages = [{"role": "user", "content": QUESTION}]

with step("messages"):
    expect(client.messages.create(model=MODEL, messages=messages, max_tokens=32).content[0].text, "text")
with step("messages, streamed"), client.messages.stream(model=MODEL, messages=messages, max_tokens=32) as stream:
    expect("".join(stream.text_stream), "text")
with step("count_tokens"):
    expect(client.messages.count_tokens(model=MODEL, messages=messages).input_tokens > 0, "tokens")
with step("tools"):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
    answer = client.messages.create(
        model=MODEL,
        messages=messages,
        max_tokens=64,
        tools=[{"name": "weather", "input_schema": schema}],
        tool_choice={"type": "tool", "name": "weather"},
    )
    expect(answer.content[0].type == "tool_use", "a call")
