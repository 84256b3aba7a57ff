"""The types of responses and events, by method and path."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from headrace.wire.openapi.anthropic_answers import MESSAGE_EVENTS, AnthropicMessage, TokenCount
from headrace.wire.openapi.ollama_answers import (
    OllamaChat,
    OllamaDescription,
    OllamaModels,
    OllamaText,
    OllamaVector,
    OllamaVectors,
    VersionAnswer,
)
from headrace.wire.openapi.openai_answers import (
    ChatCompletion,
    ChatCompletionChunk,
    Embeddings,
    ServedModel,
    ServedModels,
    TextCompletion,
)
from headrace.wire.openapi.operations import AnswerType, Operation
from headrace.wire.openapi.responses_answers import (
    RESPONSE_EVENTS,
    DeletedResponse,
    InputItems,
    InputTokens,
    ModelResponse,
)
from headrace.wire.openapi.server_answers import (
    Adapters,
    Change,
    ChatTokens,
    GeneratedText,
    Health,
    LabelScore,
    ListedAdapter,
    PairScores,
    Prompt,
    RankedText,
    Reranked,
    TextSpan,
    TgiEvent,
    TokenizerFacts,
    Tokens,
)
from headrace.wire.unknown_routes import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    DETOKENIZE,
    EMBEDDINGS,
    INPUT_TOKENS,
    MESSAGES,
    MODELS,
    RERANK,
    RESPONSES,
    SCORE,
    TOKENIZE,
    TOKENIZER_INFO,
    VERSION,
)

_ANY_OBJECT: Final = dict[str, object]
_STORED = f"{RESPONSES}/{{id}}"
_TEXTS: tuple[AnswerType, ...] = (GeneratedText, list[GeneratedText])
_OF_ANY_METHOD: Mapping[str, tuple[AnswerType, ...]] = {
    MODELS: (ServedModels,),
    f"{MODELS}/{{name:path}}": (ServedModel,),
    CHAT: (ChatCompletion,),
    COMPLETIONS: (TextCompletion,),
    RESPONSES: (ModelResponse,),
    INPUT_TOKENS: (InputTokens,),
    f"{_STORED}/input_items": (InputItems,),
    EMBEDDINGS: (Embeddings,),
    MESSAGES: (AnthropicMessage,),
    COUNT_TOKENS: (TokenCount,),
    "/api/chat": (OllamaChat,),
    "/api/generate": (OllamaText,),
    "/api/embed": (OllamaVectors,),
    "/api/embeddings": (OllamaVector,),
    "/api/show": (OllamaDescription,),
    "/api/tags": (OllamaModels,),
    "/api/ps": (OllamaModels,),
    "/api/version": (VersionAnswer,),
    "/invocations": (*_TEXTS, ChatCompletion, TextCompletion),
    "/ping": (Health,),
    "/generate": (GeneratedText,),
    "/info": (_ANY_OBJECT,),
    "/chat_tokenize": (ChatTokens,),
    TOKENIZE: (Tokens, list[TextSpan]),
    DETOKENIZE: (Prompt,),
    TOKENIZER_INFO: (TokenizerFacts,),
    VERSION: (VersionAnswer,),
    "/embed": (list[list[float]],),
    "/embed_all": (list[list[list[float]]],),
    "/predict": (list[LabelScore], list[list[LabelScore]]),
    "/similarity": (list[float],),
    "/rerank": (Reranked, list[RankedText]),
    RERANK: (Reranked,),
    "/v2/rerank": (Reranked,),
    SCORE: (PairScores,),
    "/score": (PairScores,),
    "/openapi.json": (_ANY_OBJECT,),
}
_OF_ONE_METHOD: Mapping[tuple[str, str], tuple[AnswerType, ...]] = {
    ("POST", "/"): _TEXTS,
    ("GET", _STORED): (ModelResponse,),
    ("DELETE", _STORED): (DeletedResponse,),
    **{
        (method, f"{prefix}/adapters{path}"): answer
        for prefix in ("", "/models/{model}")
        for method, path, answer in (
            ("GET", "", (Adapters,)),
            ("POST", "", (Change,)),
            ("GET", "/{name}", (list[ListedAdapter],)),
            ("DELETE", "/{name}", (Change,)),
            ("POST", "/{name}/update", (Change,)),
        )
    },
}
_EVENTS: Mapping[str, tuple[AnswerType, ...]] = {
    CHAT: (ChatCompletionChunk,),
    COMPLETIONS: (TextCompletion,),
    RESPONSES: RESPONSE_EVENTS,
    MESSAGES: MESSAGE_EVENTS,
    "/api/chat": (OllamaChat,),
    "/api/generate": (OllamaText,),
    "/": (TgiEvent,),
    "/generate_stream": (TgiEvent,),
    "/invocations": (TgiEvent, ChatCompletionChunk, TextCompletion),
}


def with_answers(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Return the operations with the types of their responses and events."""
    return tuple(
        replace(
            operation,
            answers=_OF_ONE_METHOD.get((operation.method, operation.path), _OF_ANY_METHOD.get(operation.path, ())),
            events=_EVENTS.get(operation.path, ()) if operation.bodies else (),
        )
        for operation in operations
    )
