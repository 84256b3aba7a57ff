"""
Ask a running server for constrained answers with the clients that applications use; print one JSON object a call.

    python tests/e2e/structured_clients.py URL

It runs in an environment of its own (`scripts/environment clients`): some of these packages want older versions of
what Headrace is tested with. Each call is written as the client's documentation has it.
"""

import json
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Literal

import instructor
import openai
import outlines
from huggingface_hub import InferenceClient
from langchain_openai import ChatOpenAI
from outlines.types import CFG, Regex
from pydantic import BaseModel, Field
from text_generation import Client
from text_generation.types import Grammar, GrammarType, Message

QUESTION = "Describe Paris: is it the capital of France, and how many people live there?"
MESSAGES = [{"role": "user", "content": QUESTION}]
MAX_TOKENS = 120


class Size(StrEnum):
    """Return the size of a city."""

    SMALL = "small"
    LARGE = "large"


class City(BaseModel):
    """A city; nested, with an enumeration, a bound and an optional field."""

    name: str = Field(max_length=8)
    is_capital: bool
    inhabitants: int = Field(ge=0, le=999)
    size: Size
    tags: list[Literal["river", "tower", "museum"]] = Field(max_length=1)


def openai_parse(url: str) -> City:
    """OpenAI's own structured outputs."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
    answer = client.chat.completions.parse(
        model="smollm2", messages=MESSAGES, response_format=City, max_tokens=MAX_TOKENS, temperature=0
    )
    return answer.choices[0].message.parsed


def instructor_with(mode: instructor.Mode) -> Callable[[str], City]:
    """Make a call in one of instructor's modes."""

    def call(url: str) -> City:
        base = openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
        client = instructor.from_openai(base, mode=mode)
        return client.chat.completions.create(
            model="smollm2",
            messages=MESSAGES,
            response_model=City,
            max_tokens=MAX_TOKENS,
            temperature=0,
            max_retries=1,
        )

    return call


def outlines_vllm(output_type: Any) -> Callable[[str], str]:
    """Make a call in vLLM's spelling."""

    def call(url: str) -> str:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
        model = outlines.from_vllm(client, "smollm2")
        return model(QUESTION, output_type, max_tokens=MAX_TOKENS, temperature=0)

    return call


def outlines_tgi(output_type: Any) -> Callable[[str], str]:
    """Make a call in TGI's spelling."""

    def call(url: str) -> str:
        model = outlines.from_tgi(InferenceClient(url))
        return model(QUESTION, output_type, max_new_tokens=MAX_TOKENS, return_full_text=False)

    return call


def langchain_with(method: str) -> Callable[[str], City]:
    """Make a call by one of LangChain's methods."""

    def call(url: str) -> City:
        model = ChatOpenAI(
            base_url=f"{url}/v1", api_key="-", model="smollm2", max_retries=0, temperature=0, max_tokens=MAX_TOKENS
        )
        return model.with_structured_output(City, method=method).invoke(QUESTION)

    return call


def text_generation(url: str) -> str:
    """TGI's old client, with a grammar."""
    grammar = Grammar(type=GrammarType.Json, value=City.model_json_schema())
    return Client(url, timeout=60).generate(QUESTION, max_new_tokens=MAX_TOKENS, grammar=grammar).generated_text


def text_generation_chat(url: str) -> str:
    """TGI's old client: it parses a chat answer only if that has a fingerprint."""
    answer = Client(url, timeout=60).chat([Message(role="user", content=QUESTION)], max_tokens=8, temperature=0.1)
    return answer.system_fingerprint


def hub_grammar(url: str) -> str:
    """huggingface_hub's text generation."""
    grammar = {"type": "json", "value": City.model_json_schema()}
    return InferenceClient(url).text_generation(
        QUESTION, grammar=grammar, max_new_tokens=MAX_TOKENS, return_full_text=False
    )


def hub_chat(url: str) -> str:
    """huggingface_hub's chat with OpenAI's form."""
    wanted = {"type": "json_schema", "json_schema": {"name": "City", "schema": City.model_json_schema()}}
    client = InferenceClient(base_url=f"{url}/v1")
    answer = client.chat_completion(MESSAGES, response_format=wanted, max_tokens=MAX_TOKENS, temperature=0)
    return answer.choices[0].message.content


CALLS: dict[str, Callable[[str], object]] = {
    "openai-parse": openai_parse,
    "instructor-json-schema": instructor_with(instructor.Mode.JSON_SCHEMA),
    "instructor-tools": instructor_with(instructor.Mode.TOOLS),
    "outlines-vllm-json": outlines_vllm(City),
    "outlines-vllm-regex": outlines_vllm(Regex(r"[A-Z][a-z]{2,8}")),
    "outlines-vllm-choice": outlines_vllm(Literal["yes", "no"]),
    "outlines-vllm-grammar": outlines_vllm(CFG('?start: "yes" | "no"')),
    "outlines-tgi-json": outlines_tgi(City),
    "outlines-tgi-regex": outlines_tgi(Regex(r"[A-Z][a-z]{2,8}")),
    "langchain-json-schema": langchain_with("json_schema"),
    "langchain-function-calling": langchain_with("function_calling"),
    "text-generation-grammar": text_generation,
    "text-generation-chat": text_generation_chat,
    "hub-grammar": hub_grammar,
    "hub-chat": hub_chat,
}


def results(url: str) -> Iterator[dict[str, object]]:
    """Make all calls; what goes wrong is a result too."""
    for name, call in CALLS.items():
        try:
            value = call(url)
        except Exception as error:  # noqa: BLE001 -- the test says which client failed, and how
            yield {"call": name, "error": f"{type(error).__name__}: {error}"}
        else:
            text = value.model_dump_json() if isinstance(value, BaseModel) else value
            yield {"call": name, "text": text}


if __name__ == "__main__":
    for result in results(sys.argv[1]):
        print(json.dumps(result), flush=True)
