"""Make even a small model answer with JSON that matches a schema: invalid tokens are masked out."""

import json
import os

from openai import OpenAI

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "legs": {"type": "integer", "minimum": 0, "maximum": 8},
        "can_fly": {"type": "boolean"},
    },
    "required": ["name", "legs", "can_fly"],
    "additionalProperties": False,
}

client = OpenAI(base_url=os.environ.get("HEADRACE_URL", "http://127.0.0.1:8080") + "/v1", api_key="-")
answer = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": "Describe a sparrow as JSON with name, legs and can_fly."}],
    response_format={"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}},
    max_tokens=80,
    temperature=0,
)
animal = json.loads(answer.choices[0].message.content)
assert set(animal) == {"name", "legs", "can_fly"}
print(animal)
