"""Requests of OpenAI's API for a `GenerationRequest`. Pure."""

import json
from dataclasses import asdict, replace
from typing import Any

from headrace.core.errors import InvalidRequest
from headrace.core.generation import ChatPrompt, GenerationRequest, Grammar, SamplingParams

_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "include_stop": "include_stop_str_in_output",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "logit_bias": "logit_bias",
    "seed": "seed",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
    "skip_special_tokens": "skip_special_tokens",
}
"""Maps field names to the names in OpenAI's API and its common extensions."""

_NOT_READ = ("best_of", "logprobs", "prompt_logprobs")


def request_parts(request: GenerationRequest, model: str, *, is_extended: bool = True) -> tuple[str, dict[str, Any]]:
    """
    Return path and body with only the values that differ from defaults, so that other servers accept it.

    Args:
        request: for one answer.
        model: its name on the server.
        is_extended: the server has vLLM's fields for constraints and repetition; others ignore or refuse them.

    Raises:
        InvalidRequest: an option cannot be sent to this server, or its answer is not read.
    """
    sampling = request.sampling
    for name in _NOT_READ:
        if getattr(sampling, name) is not None:
            raise InvalidRequest(
                f"`{name}` is {getattr(sampling, name)}; expected it unset for a server (--url). "
                "Load the model in this process instead."
            )
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
        **_renamed(sampling),
        **_constraint(sampling.grammar, is_extended=is_extended),
    }
    if sampling.repetition_detection is not None and is_extended:
        body["repetition_detection"] = asdict(sampling.repetition_detection)
    if isinstance(request.prompt, ChatPrompt):
        return "/v1/chat/completions", {**body, "messages": list(request.prompt.messages)}
    prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
    return "/v1/completions", {**body, "prompt": prompt}


def single_request(request: GenerationRequest, index: int) -> GenerationRequest:
    """Return the request for one of several answers; with a seed, each has the next one."""
    sampling = request.sampling
    seed = None if sampling.seed is None else sampling.seed + index
    return replace(request, sampling=replace(sampling, n=1, seed=seed))


def _renamed(sampling: SamplingParams) -> dict[str, Any]:
    default = SamplingParams()
    return {
        theirs: getattr(sampling, ours)
        for ours, theirs in _NAMES.items()
        if getattr(sampling, ours) != getattr(default, ours)
    }


def _constraint(grammar: Grammar | None, *, is_extended: bool) -> dict[str, Any]:
    """Return the field for a constraint: OpenAI's for JSON, vLLM's for the others."""
    if grammar is None:
        return {}
    if grammar.kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if grammar.kind == "json_schema":
        schema = {"name": "answer", "schema": _schema(grammar.text)}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    if not is_extended:
        raise InvalidRequest(
            f"The server at --url is neither Headrace nor vLLM, which have a field for `{grammar.kind}`. "
            "Use --json-schema, or load the model in this process."
        )
    return {"structured_outputs": {"regex" if grammar.kind == "regex" else "grammar": grammar.text}}


def _schema(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"--json-schema is not JSON: {error}.") from error
