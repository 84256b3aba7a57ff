from common import MODEL, QUESTION, SERVER, expect, step
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret

generator = OpenAIChatGenerator(
    api_key=Secret.from_token("-"),
    model=MODEL,
    api_base_url=f"{SERVER}/v1",
    generation_kwargs={"max_tokens": 32},
)

with step("run"):
    expect(generator.run([ChatMessage.from_user(QUESTION)])["replies"][0].text, "text")
with step("run, streamed"):
    parts: list[str] = []
    generator.run([ChatMessage.from_user(QUESTION)], streaming_callback=lambda chunk: parts.append(chunk.content))
    expect("".join(parts), "text")
