from typing import Literal

import openai
import outlines
from common import MODEL, QUESTION, SERVER, expect, step
from pydantic import BaseModel, Field


class City(BaseModel):
    name: str = Field(max_length=20)
    country: str = Field(max_length=20)


client = openai.OpenAI(base_url=f"{SERVER}/v1", api_key="-")

with step("from_openai"):
    expect(outlines.from_openai(client, MODEL)(QUESTION, City, max_tokens=96), "JSON")
with step("from_vllm"):
    answer = outlines.from_vllm(client, MODEL)(QUESTION, Literal["Paris", "Rome"], max_tokens=16)
    expect(answer in {"Paris", "Rome"}, "one of the choices")
