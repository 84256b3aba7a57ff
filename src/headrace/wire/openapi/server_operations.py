"""The operations of a model server, by API. A test compares them with the routes of the application."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from headrace.wire.adapters import LoraBody, RegisterBody
from headrace.wire.anthropic import dialect as anthropic
from headrace.wire.fields import FieldTable
from headrace.wire.framing import SSE_CONTENT_TYPE
from headrace.wire.lmi import parameters as lmi
from headrace.wire.ollama import dialect as ollama
from headrace.wire.ollama import embeddings as ollama_embeddings
from headrace.wire.ollama import options as ollama_options
from headrace.wire.ollama.models import ShowBody
from headrace.wire.openai import chat, completions, embeddings, responses, tokenizer
from headrace.wire.openapi.answers import with_answers
from headrace.wire.openapi.operations import JSON, JSON_OR_EVENTS, OPENAPI_PATH, Api, Operation
from headrace.wire.rerank import RERANK_FIELDS, SCORE_FIELDS, RerankBody, ScoreBody
from headrace.wire.tei import bodies as tei
from headrace.wire.tgi import parameters as tgi
from headrace.wire.tgi.pages import TokenizeBody
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

_LINES = ("application/x-ndjson", "application/json")
_PLAIN = ("text/plain",)

OPENAI = Api("OpenAI", "OpenAI's API, with the fields of vLLM and SGLang.", "OpenAIError")
ANTHROPIC = Api("Anthropic", "Anthropic's Messages API.", "AnthropicError")
OLLAMA = Api("Ollama", "Ollama's API for the model that is served.", "TextError")
SAGEMAKER = Api("SageMaker", "The container contract of Amazon SageMaker.", "TypedError")
TGI = Api("TGI", "The API of Hugging Face's Text Generation Inference.", "TypedError")
TOKENIZER = Api("Tokenizer", "vLLM's routes around the tokenizer.", "OpenAIError")
POOLING = Api("Embeddings", "Vectors and scores, as TEI, Cohere, Jina and vLLM serve them.", "TypedError")
ADAPTERS = Api("Adapters", "LoRA adapters: vLLM's routes and LMI's.", "TypedError")
SERVER = Api("Server", "Health, metrics and this description.", "TypedError")

_HELLO = [{"role": "user", "content": "Say hello."}]
_COLOURS = "red, green, blue,"
_TEXTS = ["a river", "a bank"]
_INPUTS = {"inputs": _COLOURS, "parameters": {"max_new_tokens": 16}}
_TGI_FIELDS = {"": tgi.BODY_FIELDS, "parameters.": tgi.PARAMETER_FIELDS}


def _get(api: Api, path: str, summary: str, *, produces: tuple[str, ...] = JSON, is_open: bool = False) -> Operation:
    return Operation(api=api, method="GET", path=path, summary=summary, produces=produces, is_open=is_open)


def _post(
    api: Api,
    path: str,
    summary: str,
    *bodies: type,
    example: Mapping[str, object] | None = None,
    fields: Mapping[str, FieldTable] | None = None,
    produces: tuple[str, ...] = JSON,
) -> Operation:
    return Operation(
        api=api,
        method="POST",
        path=path,
        summary=summary,
        bodies=bodies,
        example=example or {},
        fields=fields or {},
        produces=produces,
    )


def _openai() -> Iterator[Operation]:
    yield _get(OPENAI, MODELS, "List the models and adapters.")
    yield _get(OPENAI, f"{MODELS}/{{name:path}}", "Describe a model.")
    yield _post(
        OPENAI,
        CHAT,
        "Answer messages, through the model's chat template.",
        chat.ChatBody,
        example={"model": "any", "messages": _HELLO, "max_tokens": 16},
        fields={"": chat.FIELDS},
        produces=JSON_OR_EVENTS,
    )
    yield _post(
        OPENAI,
        COMPLETIONS,
        "Continue a text.",
        completions.CompletionsBody,
        example={"model": "any", "prompt": _COLOURS, "max_tokens": 16},
        fields={"": completions.FIELDS},
        produces=JSON_OR_EVENTS,
    )
    yield _post(
        OPENAI,
        RESPONSES,
        "Answer items of a conversation (Responses API).",
        responses.ResponsesBody,
        example={"model": "any", "input": "Say hello.", "max_output_tokens": 16},
        fields={"": responses.FIELDS},
        produces=JSON_OR_EVENTS,
    )
    yield _post(
        OPENAI,
        INPUT_TOKENS,
        "Count the tokens of items of a conversation; the body is that of a response.",
        responses.ResponsesBody,
        example={"model": "any", "input": "Say hello."},
        fields={"": responses.FIELDS},
    )
    stored = f"{RESPONSES}/{{id}}"
    yield _get(OPENAI, stored, "Return a stored response.")
    yield replace(_get(OPENAI, stored, "Delete a stored response."), method="DELETE")
    page = {"limit": "Items, 1 to 100.", "order": "`asc` or `desc`.", "after": "The last item of the page before."}
    items = _get(OPENAI, f"{stored}/input_items", "List the input of a stored response, newest first.")
    yield replace(items, query=page)
    yield _post(OPENAI, f"{stored}/cancel", "Refused: no response runs in the background.")
    yield _post(
        OPENAI,
        EMBEDDINGS,
        "Return a vector for each text.",
        embeddings.EmbeddingsBody,
        example={"model": "any", "input": _TEXTS},
        fields={"": embeddings.FIELDS},
    )


def _anthropic() -> Iterator[Operation]:
    yield _post(
        ANTHROPIC,
        MESSAGES,
        "Answer messages.",
        anthropic.MessagesBody,
        example={"model": "any", "messages": _HELLO, "max_tokens": 16},
        fields={"": anthropic.FIELDS},
        produces=JSON_OR_EVENTS,
    )
    example = {"model": "any", "messages": _HELLO}
    yield _post(ANTHROPIC, COUNT_TOKENS, "Count the tokens of messages.", anthropic.PromptFields, example=example)


def _ollama() -> Iterator[Operation]:
    yield _post(
        OLLAMA,
        "/api/chat",
        "Answer messages; streamed unless `stream` is false.",
        ollama.ChatBody,
        example={"model": "any", "messages": _HELLO, "stream": False},
        fields={"": ollama.CHAT_FIELDS, "options.": ollama_options.FIELDS},
        produces=_LINES,
    )
    yield _post(
        OLLAMA,
        "/api/generate",
        "Answer a prompt; streamed unless `stream` is false.",
        ollama.GenerateBody,
        example={"model": "any", "prompt": "Say hello.", "stream": False},
        fields={"": ollama.GENERATE_FIELDS, "options.": ollama_options.FIELDS},
        produces=_LINES,
    )
    yield _post(
        OLLAMA,
        "/api/embed",
        "Return vectors of length 1.",
        ollama_embeddings.EmbedBody,
        example={"model": "any", "input": _TEXTS},
        fields={"": ollama_embeddings.EMBED_FIELDS},
    )
    yield _post(
        OLLAMA,
        "/api/embeddings",
        "Return one vector; `/api/embed` replaces it.",
        ollama_embeddings.EmbeddingsBody,
        example={"model": "any", "prompt": _TEXTS[0]},
        fields={"": ollama_embeddings.EMBEDDINGS_FIELDS},
    )
    yield _post(OLLAMA, "/api/show", "Describe the model.", ShowBody, example={"model": "any"})
    yield _get(OLLAMA, "/api/tags", "List the model and its adapters.")
    yield _get(OLLAMA, "/api/ps", "List what is loaded.")
    yield _get(OLLAMA, "/api/version", "Return the version of Ollama's API.")


def _sagemaker() -> Iterator[Operation]:
    yield _post(
        SAGEMAKER,
        "/invocations",
        "Generate text; `inputs` is in the dialect of the server, `messages` and `prompt` are OpenAI's.",
        tgi.GenerateBody,
        lmi.LmiBody,
        chat.ChatBody,
        completions.CompletionsBody,
        example=_INPUTS,
        fields=_TGI_FIELDS,
        produces=JSON_OR_EVENTS,
    )
    ping = _get(SAGEMAKER, "/ping", "Answer 200 while the model is served, else 503 with the reason.", is_open=True)
    yield ping
    yield replace(ping, method="POST")


def _tgi() -> Iterator[Operation]:
    for path, summary, produces in (
        ("/", "Generate text, whole or with `stream` as events.", JSON_OR_EVENTS),
        ("/generate", "Generate text.", JSON),
        ("/generate_stream", "Generate text as events.", (SSE_CONTENT_TYPE,)),
    ):
        yield _post(TGI, path, summary, tgi.GenerateBody, example=_INPUTS, fields=_TGI_FIELDS, produces=produces)
    yield _get(TGI, "/info", "Describe the model and the limits.")
    yield _post(
        TGI,
        "/chat_tokenize",
        "Return the tokens of a chat, and its text after the chat template.",
        chat.ChatBody,
        example={"messages": _HELLO},
    )


def _tokenizer() -> Iterator[Operation]:
    yield _post(
        TGI,  # its errors have the form of TGI
        TOKENIZE,
        "Return the tokens of a text or chat; `inputs` means TGI's body and answer.",
        tokenizer.TextTokensBody,
        tokenizer.ChatTokensBody,
        TokenizeBody,
        example={"prompt": _COLOURS},
        fields={"": tokenizer.CHAT_FIELDS},
    )
    yield _post(TOKENIZER, DETOKENIZE, "Return the text of tokens.", tokenizer.DetokenizeBody, example={"tokens": [2]})
    yield _get(TOKENIZER, TOKENIZER_INFO, "Return the special tokens and the chat template.")
    yield _get(TOKENIZER, VERSION, "Return the version of the server.")


def _pooling() -> Iterator[Operation]:
    inputs = {"inputs": _TEXTS}
    sentences = {"inputs": {"source_sentence": "a river", "sentences": _TEXTS}}
    rerank = {"query": "water", "documents": _TEXTS}
    score = {"queries": "water", "documents": _TEXTS}
    yield _post(POOLING, "/embed", "Return a vector for each input (TEI).", tei.EmbedBody, example=inputs)
    yield _post(POOLING, "/embed_all", "Return a vector for each token (TEI).", tei.EmbedBody, example=inputs)
    yield _post(POOLING, "/predict", "Classify texts or pairs (TEI).", tei.PredictBody, example=inputs)
    yield _post(POOLING, "/similarity", "Compare a sentence with others.", tei.SimilarityBody, example=sentences)
    summary = "Order texts by a query; `texts` means TEI's body, `documents` Cohere's and Jina's."
    bodies = (RerankBody, tei.RerankBody)
    yield _post(POOLING, "/rerank", summary, *bodies, example=rerank, fields={"": RERANK_FIELDS})
    for path, api in ((RERANK, OPENAI), ("/v2/rerank", POOLING)):
        example = {**rerank, "model": "any"}
        yield _post(api, path, "Order documents by a query.", RerankBody, example=example, fields={"": RERANK_FIELDS})
    for path, api in ((SCORE, OPENAI), ("/score", POOLING)):
        example = {**score, "model": "any"}
        yield _post(api, path, "Score pairs of texts.", ScoreBody, example=example, fields={"": SCORE_FIELDS})


def _adapters() -> Iterator[Operation]:
    for path, summary in (
        ("/v1/load_lora_adapter", "Load an adapter, as vLLM does."),
        ("/v1/unload_lora_adapter", "Unload an adapter, as vLLM does."),
    ):
        yield _post(ADAPTERS, path, summary, LoraBody, produces=_PLAIN)
    query = {"name": "The adapter's name, instead of a body.", "src": "Its folder, instead of a body."}
    for prefix in ("", "/models/{model}"):
        adapters, adapter = f"{prefix}/adapters", f"{prefix}/adapters/{{name}}"
        yield _get(ADAPTERS, adapters, "List the adapters.")
        yield replace(_post(ADAPTERS, adapters, "Load an adapter.", RegisterBody), query=query)
        yield _get(ADAPTERS, adapter, "Describe an adapter.")
        yield replace(_get(ADAPTERS, adapter, "Unload an adapter."), method="DELETE")
        yield _post(ADAPTERS, f"{adapter}/update", "Load other content under its name.", RegisterBody)


def _server() -> Iterator[Operation]:
    yield _get(
        SERVER, "/", "Return the chat page to a browser, else the health.", produces=("text/html",), is_open=True
    )
    yield _get(SERVER, "/health", "Answer 200 while the model is served, else 503.", produces=(), is_open=True)
    yield _get(SERVER, "/metrics", "Return metrics for Prometheus.", produces=_PLAIN)
    yield _get(SERVER, OPENAPI_PATH, "Return this description.", is_open=True)


SERVER_OPERATIONS = with_answers(
    (
        *_openai(),
        *_anthropic(),
        *_ollama(),
        *_sagemaker(),
        *_tgi(),
        *_tokenizer(),
        *_pooling(),
        *_adapters(),
        *_server(),
    )
)
"""All routes of a model server but the files of its pages."""
