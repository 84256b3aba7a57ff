"""
Responses of Ollama's API, for its description.

Source: Ollama `docs/api.md`.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class Timing(Struct):
    """The end of an answer; the durations are nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaFunction(Struct):
    """A function and its arguments."""

    index: int
    name: str
    arguments: dict[str, object]


class OllamaCall(Struct):
    """A call of a tool."""

    id: str
    function: OllamaFunction


class OllamaMessage(Struct):
    """An answer, or a part of it."""

    role: Literal["assistant"]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaChat(Timing, kw_only=True):
    """The answer to a chat, or a line of its stream."""

    message: OllamaMessage


class OllamaText(Timing, kw_only=True):
    """The answer to a prompt, or a line of its stream."""

    response: str
    thinking: str | UnsetType = UNSET


class OllamaVectors(Struct):
    """The vectors of all inputs."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaVector(Struct):
    """The vector of one prompt."""

    embedding: list[float]


class OllamaDetails(Struct):
    """The network of a model."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(Struct):
    """A model or an adapter; the last three fields only of what is loaded."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str | UnsetType = UNSET
    size_vram: int | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class OllamaModels(Struct):
    """A list of models and adapters."""

    models: list[OllamaModel]


class OllamaDescription(Struct):
    """The description of a model."""

    license: str
    modelfile: str
    parameters: str
    template: str
    modified_at: str
    details: OllamaDetails
    model_info: dict[str, object]
    capabilities: list[str]


class VersionAnswer(Struct):
    """The version of a server or API."""

    version: str
