"""Order texts by their similarity to a query with the official OpenAI client: embeddings have unit length."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("HEADRACE_URL", "http://127.0.0.1:8080") + "/v1", api_key="-")
model = client.models.list().data[0].id

query = "How do I get my money back?"
texts = ["Refunds are paid within ten days.", "The mill was built in 1874.", "Our shop opens at nine."]
answer = client.embeddings.create(model=model, input=[query, *texts])
first, *others = (item.embedding for item in answer.data)

scores = [sum(a * b for a, b in zip(first, other, strict=True)) for other in others]
for score, text in sorted(zip(scores, texts, strict=True), reverse=True):
    print(f"{score:.3f}  {text}")
print(f"[{len(first)} dimensions, {answer.usage.total_tokens} tokens]")
