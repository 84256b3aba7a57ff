import instructor
from common import MODEL, QUESTION, SERVER, expect, step
from openai import OpenAI
from pydantic import BaseModel, Field


class City(BaseModel):
    name: str = Field(max_length=20)
    country: str = Field(max_length=20)


for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    with step(mode.value):
        client = instructor.from_openai(OpenAI(base_url=f"{SERVER}/v1", api_key="-"), mode=mode)
        messages = [{"role": "user", "content": QUESTION}]
        answer = client.chat.completions.create(model=MODEL, messages=messages, response_model=City, max_tokens=128)
        expect(isinstance(answer, City), "a City")
