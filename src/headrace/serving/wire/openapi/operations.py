"""
The operations of the model server and of the platform, which `operations.txt` lists, and the bodies that they take.

A test compares the server's with the routes of the application, and responses with the types of `answers.ts`.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.serving.wire import infill, unknown_routes
from headrace.serving.wire.adapters import LoraBody, RegisterBody
from headrace.serving.wire.anthropic import dialect as anthropic
from headrace.serving.wire.anthropic.batches import CreateMessageBatchBody
from headrace.serving.wire.fields import FieldTable
from headrace.serving.wire.lmi import dialect as lmi
from headrace.serving.wire.ollama import dialect as ollama
from headrace.serving.wire.ollama import embeddings as ollama_vectors
from headrace.serving.wire.ollama.models import ShowBody
from headrace.serving.wire.openai import chat, completions, pages, pooling, responses
from headrace.serving.wire.openai.batches import CreateBatchBody
from headrace.serving.wire.openapi.document import Api, Operation
from headrace.serving.wire.tei import dialect as tei
from headrace.serving.wire.tgi import dialect as tgi
from headrace.serving.wire.tgi.reply import TokenizeBody
from headrace.serving.wire.unknown_routes import (
    BATCHES,
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    DETOKENIZE,
    EMBEDDINGS,
    FILES,
    INPUT_TOKENS,
    MESSAGE_BATCHES,
    MESSAGES,
    MODELS,
    OPENAPI_PATH,
    RERANK,
    RESPONSES,
    SCORE,
    TOKENIZE,
)

_STORED = f"{RESPONSES}/{{id}}"
_ADAPTER_PREFIXES = ("", "/models/{model}")


@dataclass(frozen=True, slots=True)
class _Body:
    """The body of a POST: the structs that parse it, an example, and the tables of the fields that they lack."""

    types: tuple[type, ...]
    example: Mapping[str, object] = field(default_factory=dict)
    fields: Mapping[str, FieldTable] = field(default_factory=dict)


def _body(*types: type, fields: FieldTable | Mapping[str, FieldTable] | None = None, **example: object) -> _Body:
    return _Body(types, example, {"": fields} if isinstance(fields, FieldTable) else fields or {})


_HELLO = [{"role": "user", "content": "Say hello."}]
_COLOURS = "red, green, blue,"
_TEXTS = ["a river", "a bank"]
_INPUTS = {"inputs": _COLOURS, "parameters": {"max_new_tokens": 16}}
_SENTENCES = {"source_sentence": "a river", "sentences": _TEXTS}
_GENERATE = _Body((tgi.GenerateBody,), _INPUTS, {"": tgi.BODY_FIELDS, "parameters.": tgi.PARAMETER_FIELDS})
_RERANK = _body(pooling.RerankBody, fields=pooling.RERANK_FIELDS, model="any", query="water", documents=_TEXTS)
_SCORE = _body(pooling.ScoreBody, fields=pooling.SCORE_FIELDS, model="any", queries="water", documents=_TEXTS)
_CHAT_FIELDS = {"": ollama.CHAT_FIELDS, "options.": ollama.OPTION_FIELDS}
_GENERATE_FIELDS = {"": ollama.GENERATE_FIELDS, "options.": ollama.OPTION_FIELDS}
_BODIES: Mapping[str, _Body] = {
    CHAT: _body(chat.ChatBody, fields=chat.FIELDS, model="any", messages=_HELLO, max_tokens=16),
    COMPLETIONS: _body(
        completions.CompletionsBody, fields=completions.FIELDS, model="any", prompt=_COLOURS, max_tokens=16
    ),
    "/infill": _body(
        infill.InfillBody, fields=infill.FIELDS, input_prefix="def add(a, b):\n", input_suffix="", n_predict=16
    ),
    RESPONSES: _body(
        responses.ResponsesBody, fields=responses.FIELDS, model="any", input="Say hello.", max_output_tokens=16
    ),
    INPUT_TOKENS: _body(responses.ResponsesBody, fields=responses.FIELDS, model="any", input="Say hello."),
    EMBEDDINGS: _body(pooling.EmbeddingsBody, fields=pooling.FIELDS, model="any", input=_TEXTS),
    MESSAGES: _body(anthropic.MessagesBody, fields=anthropic.FIELDS, model="any", messages=_HELLO, max_tokens=16),
    COUNT_TOKENS: _body(anthropic.PromptFields, model="any", messages=_HELLO),
    BATCHES: _body(CreateBatchBody),
    MESSAGE_BATCHES: _body(CreateMessageBatchBody),
    "/api/chat": _body(ollama.ChatBody, fields=_CHAT_FIELDS, model="any", messages=_HELLO, stream=False),
    "/api/generate": _body(
        ollama.GenerateBody, fields=_GENERATE_FIELDS, model="any", prompt="Say hello.", stream=False
    ),
    "/api/embed": _body(ollama_vectors.EmbedBody, fields=ollama_vectors.EMBED_FIELDS, model="any", input=_TEXTS),
    "/api/embeddings": _body(
        ollama_vectors.EmbeddingsBody, fields=ollama_vectors.EMBEDDINGS_FIELDS, model="any", prompt=_TEXTS[0]
    ),
    **dict.fromkeys(("/api/show", "/api/pull", "/models/load", "/models/unload"), _body(ShowBody, model="any")),
    **dict.fromkeys(
        ("/invocations", "/endpoints/{name}/invocations", "/endpoints/{name}/invocations-response-stream"),
        replace(_GENERATE, types=(tgi.GenerateBody, lmi.LmiBody, chat.ChatBody, completions.CompletionsBody)),
    ),
    **dict.fromkeys(("/", "/generate", "/generate_stream"), _GENERATE),
    "/chat_tokenize": _body(chat.ChatBody, messages=_HELLO),
    TOKENIZE: _body(
        pages.TextTokensBody, pages.ChatTokensBody, TokenizeBody, fields=pages.CHAT_FIELDS, prompt=_COLOURS
    ),
    DETOKENIZE: _body(pages.DetokenizeBody, tokens=[2]),
    **dict.fromkeys(("/embed", "/embed_all"), _body(tei.EmbedBody, inputs=_TEXTS)),
    "/predict": _body(tei.PredictBody, inputs=_TEXTS),
    "/similarity": _body(tei.SimilarityBody, inputs=_SENTENCES),
    "/rerank": _body(pooling.RerankBody, tei.RerankBody, fields=pooling.RERANK_FIELDS, query="water", documents=_TEXTS),
    **dict.fromkeys((RERANK, "/v2/rerank"), _RERANK),
    **dict.fromkeys((SCORE, "/score"), _SCORE),
    **dict.fromkeys(("/v1/load_lora_adapter", "/v1/unload_lora_adapter"), _body(LoraBody)),
    **dict.fromkeys((f"{prefix}/adapters" for prefix in _ADAPTER_PREFIXES), _body(RegisterBody)),
    **dict.fromkeys((f"{prefix}/adapters/{{name}}/update" for prefix in _ADAPTER_PREFIXES), _body(RegisterBody)),
}
_PAGE = {"limit": "Items on a page.", "after": "The last item of the page before."}
_ADAPTER_QUERY = {"name": "The adapter's name, instead of a body.", "src": "Its folder, instead of a body."}
_QUERIES: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("GET", f"{_STORED}/input_items"): {
        "limit": "Items, 1 to 100.",
        "order": "`asc` or `desc`.",
        "after": "The last item of the page before.",
    },
    ("GET", FILES): {**_PAGE, "order": "`asc` or `desc`.", "purpose": "Only files of this purpose."},
    ("GET", BATCHES): _PAGE,
    ("GET", MESSAGE_BATCHES): {
        "limit": "Items on a page.",
        "after_id": "The last item of the page before.",
        "before_id": "The first item of the page after.",
    },
    **dict.fromkeys((("POST", f"{prefix}/adapters") for prefix in _ADAPTER_PREFIXES), _ADAPTER_QUERY),
}
_OPEN = frozenset({("GET", "/"), ("GET", "/ping"), ("POST", "/ping"), ("GET", "/health"), ("GET", OPENAPI_PATH)})
"""Operations that need no key."""


def _read_operations(text: str) -> dict[str, list[Operation]]:
    """Return the operations of a text as `operations.txt` by their group."""
    groups: dict[str, list[Operation]] = {}
    api = Api("", "", "")
    for line in text.replace("\n    ", " ").splitlines():
        if line.startswith("["):
            title, _, about = line[1:].partition("] ")
            name, _, formats = title.partition(": ")
            api = Api(name, about, *formats.split(", "))
            groups[name] = []
        elif line and not line.startswith("#"):
            route, _, kinds = line.partition(": ")
            method, path = route.split()
            kinds, _, summary = kinds.partition("-- ")
            answer, _, event = kinds.partition("/ ")
            body = _BODIES.get(path, _Body(())) if method == "POST" else _Body(())
            groups[api.name].append(
                Operation(
                    api=api,
                    method=method,
                    path=path,
                    summary=summary,
                    answer=answer.strip(),
                    event=event.strip(),
                    bodies=body.types,
                    example=body.example,
                    fields=body.fields,
                    query=_QUERIES.get((method, path), {}),
                    is_open=(method, path) in _OPEN,
                )
            )
    return groups


_GROUPS = _read_operations(Path(__file__).with_name("operations.txt").read_text(encoding="utf-8"))
_OF_PLATFORM = [*_GROUPS.pop("SageMaker runtime"), *_GROUPS.pop("Platform")]
_MANY_MODELS = _GROUPS.pop("Many models")
SERVER_OPERATIONS = tuple(itertools.chain.from_iterable(_GROUPS.values()))
"""All routes of a model server but the files of its pages."""
_OF_ONE_MODEL = ("/v1/files", "/v1/batches", f"{MESSAGES}/batches", _STORED)
MANY_MODELS_OPERATIONS = (
    *(
        operation
        for operation in SERVER_OPERATIONS
        if operation.api.name != "Adapters" and not operation.path.startswith(_OF_ONE_MODEL)
    ),
    *_MANY_MODELS,
)
"""The routes of a server with many models: what a process of one model would keep would end with it."""


def with_model(operations: Iterable[Operation], model: str) -> tuple[Operation, ...]:
    """Return the operations with the name of the served model in their examples."""
    return tuple(
        replace(operation, example={**operation.example, "model": model}) if "model" in operation.example else operation
        for operation in operations
    )


def _gateway() -> Iterator[Operation]:
    """Yield the routes below `/v1` and those of Ollama: the model is the endpoint that `model` names."""
    served = {*unknown_routes.OPENAI_METHODS, *unknown_routes.OLLAMA_POSTS, *unknown_routes.OLLAMA_PAGES}
    for operation in SERVER_OPERATIONS:
        below = (f"{MODELS}/", f"{RESPONSES}/", FILES, BATCHES, MESSAGE_BATCHES)
        if operation.path in served or operation.path.startswith(below):
            has_model = operation.bodies and operation.path not in {BATCHES, MESSAGE_BATCHES}
            example = {**operation.example, "model": "ENDPOINT"} if has_model else {}
            yield replace(operation, example=example)


PLATFORM_OPERATIONS = (*_gateway(), *_OF_PLATFORM)
"""What a platform's clients call without an AWS SDK, and SageMaker's runtime."""
