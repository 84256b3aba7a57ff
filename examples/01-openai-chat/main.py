"""Stream a chat answer with the official OpenAI client; only `base_url` differs from code written for OpenAI."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("HEADRACE_URL", "http://127.0.0.1:8080") + "/v1", api_key="-")
model = client.models.list().data[0].id

stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Name three rivers in Europe."}],
    max_tokens=60,
    temperature=0,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        print(f"\n[{chunk.usage.prompt_tokens} prompt tokens, {chunk.usage.completion_tokens} generated]")
