from common import QUESTION, SERVER, expect, step
from text_generation import Client

client = Client(SERVER)

with step("generate"):
    expect(client.generate("The capital of France is", max_new_tokens=8).generated_text, "text")
with step("generate_stream"):
    stream = client.generate_stream("The capital of France is", max_new_tokens=8)
    expect("".join(part.token.text for part in stream), "text")
with step("chat"):
    answer = client.chat([{"role": "user", "content": QUESTION}], max_tokens=32)
    expect(answer.choices[0].message.content, "text")
