"""Request details from TGI's `/generate`: tokens with log probabilities, the best alternatives, the finish reason."""

import os

import httpx

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8080")

answer = httpx.post(
    f"{URL}/generate",
    json={
        "inputs": "Water boils at",
        "parameters": {"max_new_tokens": 8, "details": True, "top_n_tokens": 2},
    },
    timeout=60,
).raise_for_status()
body = answer.json()
print(body["generated_text"])
details = body["details"]
for token, alternatives in zip(details["tokens"], details["top_tokens"], strict=True):
    others = ", ".join(f"{top['text']!r} {top['logprob']:.2f}" for top in alternatives)
    print(f"  {token['text']!r:14} {token['logprob']:7.3f}   best: {others}")
print("finish reason:", details["finish_reason"])
