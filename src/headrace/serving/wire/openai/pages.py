"""
Pages about the model: `/v1/models`, and vLLM's `/tokenize`, `/detokenize`, `/tokenizer_info` and `/version`.

Source: vLLM `entrypoints/serve/tokenize/protocol.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import ModelNotFound
from headrace.core.generation import AdapterInfo, ChatPrompt, ModelInfo, TextSpan
from headrace.serving.wire.dialect import RequestContext
from headrace.serving.wire.fields import field_table
from headrace.serving.wire.framing import decode_body, field_names, refusing_deep_nesting, to_json
from headrace.serving.wire.openai.chat import ChatBody, chat_prompt
from headrace.serving.wire.openai.messages import Message
from headrace.serving.wire.openai.parameters import model_named
from headrace.serving.wire.openai.tools import Tool, plan_tools


def render_models(model: ModelInfo, names: Sequence[str] = (), adapters: Sequence[AdapterInfo] = ()) -> bytes:
    """Render the list: the model under its own name and under each of `names`, and its adapters."""
    models = [_model(model, name) for name in dict.fromkeys((model.name, *names))]
    return to_json(model_list([*models, *(_adapter(model, adapter) for adapter in adapters)]))


def render_model(model: ModelInfo, name: str, names: Sequence[str] = (), adapters: Sequence[AdapterInfo] = ()) -> bytes:
    """Render one model or adapter. Raises `ModelNotFound`: no model is served under that name."""
    for adapter in adapters:
        if adapter.name == name:
            return to_json(_adapter(model, adapter))
    if name not in {model.name, *names}:
        raise ModelNotFound(f"The model `{shortened(name)}` does not exist. Served here: `{model.name}`.")
    return to_json(_model(model, name))


def listed_model(name: str, created_s: float) -> dict[str, object]:
    """Return the fields of a model that OpenAI's and Anthropic's clients expect: both ask `/v1/models`."""
    return {
        "id": name,
        "object": "model",
        "created": int(created_s),
        "owned_by": "headrace",
        "type": "model",
        "display_name": name,
        "created_at": f"{datetime.fromtimestamp(int(created_s), UTC):%Y-%m-%dT%H:%M:%SZ}",
        "lifecycle": "active",
    }


def model_list(models: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the list of models, which is one page in Anthropic's terms."""
    ends = (models[0]["id"], models[-1]["id"]) if models else (None, None)
    return {"object": "list", "data": models, "has_more": False, "first_id": ends[0], "last_id": ends[1]}


def _adapter(model: ModelInfo, adapter: AdapterInfo) -> dict[str, object]:
    """Return an adapter as vLLM lists it."""
    own = {"root": adapter.path, "parent": model.name}
    return {**_model(model, adapter.name), **listed_model(adapter.name, adapter.created_s), **own}


def _model(model: ModelInfo, name: str) -> dict[str, object]:
    return {
        **listed_model(name, model.created_s),
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_model_len,
        "has_chat_template": model.has_chat_template,
        "tool_support": model.tool_support,
    }


_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Always in `/tokenizer_info`: clients check `eos_token` to find out whether a server has the route."""


class TextTokensBody(msgspec.Struct, kw_only=True):
    """The body of `/tokenize` for a text."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool | None = None


class ChatTokensBody(msgspec.Struct, kw_only=True):
    """The body of `/tokenize` for a chat; its template adds the special tokens."""

    messages: list[Message]
    model: str | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    add_special_tokens: bool = False
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """The body of `/detokenize`: token ids, special ones too."""

    tokens: list[int]
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensRequest:
    """A text or chat to tokenize."""

    prompt: str | ChatPrompt
    add_special_tokens: bool
    shows_pieces: bool


_text_decoder = msgspec.json.Decoder(TextTokensBody)
_chat_decoder = msgspec.json.Decoder(ChatTokensBody)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeBody)
CHAT_FIELDS = field_table("tokenize", ChatTokensBody)


def is_tokens_body(body: bytes) -> bool:
    """Return whether a body of `/tokenize` is vLLM's; that of TGI has `inputs`."""
    names = field_names(body)
    return "inputs" not in names and not names.isdisjoint({"prompt", "messages"})


@refusing_deep_nesting()
def parse_tokens(body: bytes, context: RequestContext) -> TokensRequest:
    """Parse a body of `/tokenize`. Raises `InvalidRequest` or `ModelNotFound`."""
    if "messages" in field_names(body):
        return _parse_chat(body, context)
    fields = decode_body(body, _text_decoder)
    model_named(fields.model, context)
    return TokensRequest(
        prompt=fields.prompt,
        add_special_tokens=fields.add_special_tokens,
        shows_pieces=bool(fields.return_token_strs),
    )


def _parse_chat(body: bytes, context: RequestContext) -> TokensRequest:
    fields = decode_body(body, _chat_decoder)
    context, _ = model_named(fields.model, context)
    CHAT_FIELDS.check(body)
    chat = ChatBody(
        messages=fields.messages,
        tools=fields.tools,
        chat_template_kwargs=fields.chat_template_kwargs,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
    )
    plan = plan_tools(fields.tools, None, parallel=True)
    return TokensRequest(
        prompt=chat_prompt(chat, plan, context.model.answer_format),
        add_special_tokens=fields.add_special_tokens,
        shows_pieces=bool(fields.return_token_strs),
    )


def parse_detokenize(body: bytes, context: RequestContext) -> tuple[int, ...]:
    """Return the token ids of a body of `/detokenize`. Raises `InvalidRequest` or `ModelNotFound`."""
    fields = decode_body(body, _detokenize_decoder)
    model_named(fields.model, context)
    return tuple(fields.tokens)


def render_tokens(spans: Sequence[TextSpan], *, max_model_len: int, shows_pieces: bool) -> bytes:
    return to_json(
        {
            "count": len(spans),
            "max_model_len": max_model_len,
            "tokens": [span.id for span in spans],
            "token_strs": [span.piece for span in spans] if shows_pieces else None,
        }
    )


def render_text(text: str) -> bytes:
    return to_json({"prompt": text})


def render_tokenizer(config: Mapping[str, object]) -> bytes:
    return to_json({**dict.fromkeys(_SPECIAL_TOKENS), **config})


def render_version(version: str) -> bytes:
    return to_json({"version": version})
