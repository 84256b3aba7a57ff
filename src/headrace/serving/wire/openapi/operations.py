"""
The operations of the model server and of the platform, a line each, and the bodies that they take.

A test compares the server's with the routes of the application, and responses with the types of `answers.ts`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from headrace.serving.wire import unknown_routes
from headrace.serving.wire.adapters import LoraBody, RegisterBody
from headrace.serving.wire.anthropic import dialect as anthropic
from headrace.serving.wire.fields import FieldTable
from headrace.serving.wire.lmi import dialect as lmi
from headrace.serving.wire.ollama import dialect as ollama
from headrace.serving.wire.ollama import embeddings as ollama_vectors
from headrace.serving.wire.ollama import options as ollama_options
from headrace.serving.wire.ollama.models import ShowBody
from headrace.serving.wire.openai import chat, completions, pages, pooling, responses
from headrace.serving.wire.openapi.document import Api, Operation
from headrace.serving.wire.tei import dialect as tei
from headrace.serving.wire.tgi import dialect as tgi
from headrace.serving.wire.tgi.reply import TokenizeBody
from headrace.serving.wire.unknown_routes import (
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
)

OPENAPI_PATH = "/openapi.json"
_STORED = f"{RESPONSES}/{{id}}"
_ADAPTER_PREFIXES = ("", "/models/{model}")
_PLAIN = "text/plain"
_ANY_OBJECT = "Record<string, unknown>"

_OPENAI = Api("OpenAI", "OpenAI's API, with the fields of vLLM and SGLang.", "OpenAIError")
_ANTHROPIC = Api("Anthropic", "Anthropic's Messages API.", "AnthropicError")
_OLLAMA = Api("Ollama", "Ollama's API for the model that is served.", "TextError", "application/x-ndjson")
_SAGEMAKER = Api("SageMaker", "The container contract of Amazon SageMaker.", "TypedError")
_TGI = Api("TGI", "The API of Hugging Face's Text Generation Inference.", "TypedError")
_TOKENIZER = Api("Tokenizer", "vLLM's routes around the tokenizer.", "OpenAIError")
_POOLING = Api("Embeddings", "Vectors and scores, as TEI, Cohere, Jina and vLLM serve them.", "TypedError")
_ADAPTERS = Api("Adapters", "LoRA adapters: vLLM's routes and LMI's.", "TypedError")
_SERVER = Api("Server", "Health, metrics and this description.", "TypedError")
_RUNTIME = Api("SageMaker runtime", "The invocation of endpoints; clients of AWS sign these requests.", "AwsError")
_PLATFORM = Api("Platform", "Health, metrics and this description.", "TypedError")


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
_CHAT_FIELDS = {"": ollama.CHAT_FIELDS, "options.": ollama_options.FIELDS}
_GENERATE_FIELDS = {"": ollama.GENERATE_FIELDS, "options.": ollama_options.FIELDS}
_BODIES: Mapping[str, _Body] = {
    CHAT: _body(chat.ChatBody, fields=chat.FIELDS, model="any", messages=_HELLO, max_tokens=16),
    COMPLETIONS: _body(
        completions.CompletionsBody, fields=completions.FIELDS, model="any", prompt=_COLOURS, max_tokens=16
    ),
    RESPONSES: _body(
        responses.ResponsesBody, fields=responses.FIELDS, model="any", input="Say hello.", max_output_tokens=16
    ),
    INPUT_TOKENS: _body(responses.ResponsesBody, fields=responses.FIELDS, model="any", input="Say hello."),
    EMBEDDINGS: _body(pooling.EmbeddingsBody, fields=pooling.FIELDS, model="any", input=_TEXTS),
    MESSAGES: _body(anthropic.MessagesBody, fields=anthropic.FIELDS, model="any", messages=_HELLO, max_tokens=16),
    COUNT_TOKENS: _body(anthropic.PromptFields, model="any", messages=_HELLO),
    "/api/chat": _body(ollama.ChatBody, fields=_CHAT_FIELDS, model="any", messages=_HELLO, stream=False),
    "/api/generate": _body(
        ollama.GenerateBody, fields=_GENERATE_FIELDS, model="any", prompt="Say hello.", stream=False
    ),
    "/api/embed": _body(ollama_vectors.EmbedBody, fields=ollama_vectors.EMBED_FIELDS, model="any", input=_TEXTS),
    "/api/embeddings": _body(
        ollama_vectors.EmbeddingsBody, fields=ollama_vectors.EMBEDDINGS_FIELDS, model="any", prompt=_TEXTS[0]
    ),
    "/api/show": _body(ShowBody, model="any"),
    "/invocations": replace(
        _GENERATE, types=(tgi.GenerateBody, lmi.LmiBody, chat.ChatBody, completions.CompletionsBody)
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
_ADAPTER_QUERY = {"name": "The adapter's name, instead of a body.", "src": "Its folder, instead of a body."}
_QUERIES: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("GET", f"{_STORED}/input_items"): {
        "limit": "Items, 1 to 100.",
        "order": "`asc` or `desc`.",
        "after": "The last item of the page before.",
    },
    **dict.fromkeys((("POST", f"{prefix}/adapters") for prefix in _ADAPTER_PREFIXES), _ADAPTER_QUERY),
}
_OPEN = frozenset({("GET", "/"), ("GET", "/ping"), ("POST", "/ping"), ("GET", "/health"), ("GET", OPENAPI_PATH)})
"""Operations that need no key."""


def _routes(api: Api, *rows: tuple[str, ...]) -> Iterator[Operation]:
    """Yield operations of rows with a method, a path, a summary, the type of the response and that of events."""
    for method, path, summary, answer, *event in rows:
        body = _BODIES.get(path, _Body(())) if method == "POST" else _Body(())
        yield Operation(
            api=api,
            method=method,
            path=path,
            summary=summary,
            answer=answer,
            event="".join(event),
            bodies=body.types,
            example=body.example,
            fields=body.fields,
            query=_QUERIES.get((method, path), {}),
            is_open=(method, path) in _OPEN,
        )


_TEXT_ANSWERS = "GeneratedText | GeneratedText[]"
SERVER_OPERATIONS = (
    *_routes(
        _OPENAI,
        ("GET", MODELS, "List the models and adapters.", "ServedModels"),
        ("GET", f"{MODELS}/{{name:path}}", "Describe a model.", "ServedModel"),
        ("POST", CHAT, "Answer messages, through the model's chat template.", "ChatCompletion", "ChatCompletionChunk"),
        ("POST", COMPLETIONS, "Continue a text.", "TextCompletion", "TextCompletion"),
        ("POST", RESPONSES, "Answer items of a conversation (Responses API).", "ModelResponse", "ResponsesEvent"),
        (
            "POST",
            INPUT_TOKENS,
            "Count the tokens of items of a conversation; the body is that of a response.",
            "InputTokens",
        ),
        ("GET", _STORED, "Return a stored response.", "ModelResponse"),
        ("DELETE", _STORED, "Delete a stored response.", "DeletedResponse"),
        ("GET", f"{_STORED}/input_items", "List the input of a stored response, newest first.", "InputItems"),
        ("POST", f"{_STORED}/cancel", "Refused: no response runs in the background.", "unknown"),
        ("POST", EMBEDDINGS, "Return a vector for each text.", "Embeddings"),
        ("POST", RERANK, "Order documents by a query.", "Reranked"),
        ("POST", SCORE, "Score pairs of texts.", "PairScores"),
    ),
    *_routes(
        _ANTHROPIC,
        ("POST", MESSAGES, "Answer messages.", "AnthropicMessage", "MessageEvent"),
        ("POST", COUNT_TOKENS, "Count the tokens of messages.", "TokenCount"),
    ),
    *_routes(
        _OLLAMA,
        ("POST", "/api/chat", "Answer messages; streamed unless `stream` is false.", "OllamaChat", "OllamaChat"),
        ("POST", "/api/generate", "Answer a prompt; streamed unless `stream` is false.", "OllamaText", "OllamaText"),
        ("POST", "/api/embed", "Return vectors of length 1.", "OllamaVectors"),
        ("POST", "/api/embeddings", "Return one vector; `/api/embed` replaces it.", "OllamaVector"),
        ("POST", "/api/show", "Describe the model.", "OllamaDescription"),
        ("GET", "/api/tags", "List the model and its adapters.", "OllamaModels"),
        ("GET", "/api/ps", "List what is loaded.", "OllamaModels"),
        ("GET", "/api/version", "Return the version of Ollama's API.", "VersionAnswer"),
    ),
    *_routes(
        _SAGEMAKER,
        (
            "POST",
            "/invocations",
            "Generate text; `inputs` is in the dialect of the server, `messages` and `prompt` are OpenAI's.",
            f"{_TEXT_ANSWERS} | ChatCompletion | TextCompletion",
            "TgiEvent | ChatCompletionChunk | TextCompletion",
        ),
        *(
            (method, "/ping", "Answer 200 while the model is served, else 503 with the reason.", "Health")
            for method in ("GET", "POST")
        ),
    ),
    *_routes(
        _TGI,
        ("POST", "/", "Generate text, whole or with `stream` as events.", _TEXT_ANSWERS, "TgiEvent"),
        ("POST", "/generate", "Generate text.", "GeneratedText"),
        ("POST", "/generate_stream", "Generate text as events.", "", "TgiEvent"),
        ("GET", "/info", "Describe the model and the limits.", _ANY_OBJECT),
        ("POST", "/chat_tokenize", "Return the tokens of a chat, and its text after the chat template.", "ChatTokens"),
        (  # its errors have the form of TGI
            "POST",
            TOKENIZE,
            "Return the tokens of a text or chat; `inputs` means TGI's body and answer.",
            "Tokens | TextSpan[]",
        ),
    ),
    *_routes(
        _TOKENIZER,
        ("POST", DETOKENIZE, "Return the text of tokens.", "Prompt"),
        ("GET", unknown_routes.TOKENIZER_INFO, "Return the special tokens and the chat template.", "TokenizerFacts"),
        ("GET", unknown_routes.VERSION, "Return the version of the server.", "VersionAnswer"),
    ),
    *_routes(
        _POOLING,
        ("POST", "/embed", "Return a vector for each input (TEI).", "number[][]"),
        ("POST", "/embed_all", "Return a vector for each token (TEI).", "number[][][]"),
        ("POST", "/predict", "Classify texts or pairs (TEI).", "LabelScore[] | LabelScore[][]"),
        ("POST", "/similarity", "Compare a sentence with others.", "number[]"),
        (
            "POST",
            "/rerank",
            "Order texts by a query; `texts` means TEI's body, `documents` Cohere's and Jina's.",
            "Reranked | RankedText[]",
        ),
        ("POST", "/v2/rerank", "Order documents by a query.", "Reranked"),
        ("POST", "/score", "Score pairs of texts.", "PairScores"),
    ),
    *_routes(
        _ADAPTERS,
        ("POST", "/v1/load_lora_adapter", "Load an adapter, as vLLM does.", _PLAIN),
        ("POST", "/v1/unload_lora_adapter", "Unload an adapter, as vLLM does.", _PLAIN),
        *(
            (method, f"{prefix}/adapters{path}", summary, answer)
            for prefix in _ADAPTER_PREFIXES
            for method, path, summary, answer in (
                ("GET", "", "List the adapters.", "Adapters"),
                ("POST", "", "Load an adapter.", "Change"),
                ("GET", "/{name}", "Describe an adapter.", "ListedAdapter[]"),
                ("DELETE", "/{name}", "Unload an adapter.", "Change"),
                ("POST", "/{name}/update", "Load other content under its name.", "Change"),
            )
        ),
    ),
    *_routes(
        _SERVER,
        ("GET", "/", "Return the chat page to a browser, else the health.", "text/html"),
        ("GET", "/health", "Answer 200 while the model is served, else 503.", ""),
        ("GET", "/metrics", "Return metrics for Prometheus.", _PLAIN),
        ("GET", OPENAPI_PATH, "Return this description.", _ANY_OBJECT),
    ),
)
"""All routes of a model server but the files of its pages."""


def with_model(operations: Iterable[Operation], model: str) -> tuple[Operation, ...]:
    """Return the operations with the name of the served model in their examples."""
    return tuple(
        replace(operation, example={**operation.example, "model": model}) if "model" in operation.example else operation
        for operation in operations
    )


def _gateway() -> Iterator[Operation]:
    """Yield the routes below `/v1`: the model is the endpoint that `model` names."""
    for operation in SERVER_OPERATIONS:
        below = (f"{MODELS}/", f"{RESPONSES}/")
        if operation.path in unknown_routes.OPENAI_METHODS or operation.path.startswith(below):
            example = {**operation.example, "model": "ENDPOINT"} if operation.bodies else {}
            yield replace(operation, example=example)


def _runtime() -> Iterator[Operation]:
    invocations = next(operation for operation in SERVER_OPERATIONS if operation.path == "/invocations")
    for path, summary, answer in (
        ("invocations", "Invoke an endpoint (InvokeEndpoint).", "unknown"),
        (
            "invocations-response-stream",
            "Invoke an endpoint and stream its response (InvokeEndpointWithResponseStream).",
            "application/vnd.amazon.eventstream",
        ),
    ):
        yield replace(
            invocations,
            api=_RUNTIME,
            path=f"/endpoints/{{name}}/{path}",
            summary=f"{summary} The response is that of the endpoint's model server.",
            answer=answer,
            event="",
            example=_INPUTS,
        )


PLATFORM_OPERATIONS = (
    *_gateway(),
    *_runtime(),
    *_routes(
        _PLATFORM,
        ("GET", "/health", "Return the state of the platform.", "PlatformHealth"),
        ("GET", "/metrics", "Return the gateway's metrics for Prometheus.", _PLAIN),
        ("GET", "/metrics/targets", "List the workers for Prometheus' service discovery.", "TargetGroup[]"),
        ("GET", "/metrics/workers/{worker}", "Return the metrics of a worker for Prometheus.", _PLAIN),
        ("GET", OPENAPI_PATH, "Return this description.", _ANY_OBJECT),
    ),
)
"""What a platform's clients call without an AWS SDK, and SageMaker's runtime."""
