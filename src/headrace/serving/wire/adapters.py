"""
Requests that manage adapters: vLLM's, and those that LMI and SageMaker's container contract share.

Source: vLLM `entrypoints/serve/lora`; DJL Serving "Adapters management API"; AWS model_hosting_container_standards.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.generation import AdapterInfo
from headrace.serving.wire.framing import decode_body, to_json

IDENTIFIER_HEADER = "x-amzn-sagemaker-adapter-identifier"
"""Names the adapter of a request to `/invocations`. Source: model_hosting_container_standards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterChange:
    """The name of an adapter, and the folder to load it from; empty to unload it."""

    name: str
    source: str = ""
    grant: dict[str, object] | None = None
    """What the platform lets its worker read of the source; None: nothing, or it is elsewhere."""
    replaces: bool = False


class LoraBody(msgspec.Struct):
    """The body of `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, which needs no path."""

    lora_name: str
    lora_path: str = ""
    load_inplace: bool = False


class RegisterBody(msgspec.Struct):
    """The body that registers an adapter; the query may name it instead."""

    name: str
    src: str = ""
    preload: bool = True
    """Accepted without effect: an adapter is always loaded at once."""
    pin: bool = False
    """Accepted without effect: a loaded adapter is never evicted."""
    grant: dict[str, object] | None = None
    """Only of the platform to its workers; ignored elsewhere."""


_vllm_decoder = msgspec.json.Decoder(LoraBody)
_register_decoder = msgspec.json.Decoder(RegisterBody)


def parse_vllm(body: bytes, *, loads: bool) -> AdapterChange:
    """Parse a body that loads or unloads an adapter in vLLM's form. Raises `InvalidRequest`."""
    decoded = decode_body(body, _vllm_decoder)
    if not decoded.lora_name or (loads and not decoded.lora_path):
        field = "lora_path" if decoded.lora_name else "lora_name"
        raise InvalidRequest(f"`{field}` is missing; expected a {'folder' if loads else 'name'}.", param=field)
    return AdapterChange(name=decoded.lora_name, source=decoded.lora_path, replaces=decoded.load_inplace)


def parse_register(body: bytes, query: Mapping[str, str]) -> AdapterChange:
    """Parse a registration: `name` and `src` in the query (LMI) or the body (SageMaker). Raises `InvalidRequest`."""
    decoded = decode_body(body, _register_decoder) if body.strip() else RegisterBody(name="")
    name, source = query.get("name") or decoded.name, query.get("src") or decoded.src
    for field, value in (("name", name), ("src", source)):
        if not value:
            raise InvalidRequest(f"`{field}` is missing; expected it in the query or in a JSON body.", param=field)
    return AdapterChange(name=name, source=source, grant=decoded.grant)


def render_adapters(adapters: Iterable[AdapterInfo]) -> bytes:
    """Render the list of adapters in LMI's form."""
    return to_json({"adapters": [_entry(adapter) for adapter in adapters]})


def render_adapter(adapter: AdapterInfo) -> bytes:
    """Render the description of one adapter, as LMI does: a list of one."""
    return to_json([_entry(adapter)])


def render_change(name: str, change: str) -> bytes:
    """Render the confirmation of a change, as LMI does."""
    return to_json({"status": f"Adapter {name} {change}"})


def _entry(adapter: AdapterInfo) -> dict[str, object]:
    return {"name": adapter.name, "src": adapter.path, "pin": True}
