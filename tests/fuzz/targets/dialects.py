"""Bodies of each dialect, and of the routes beside them."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec

from headrace.core.answer_format.formats import REASONING_TAGS
from headrace.core.errors import HeadraceError
from headrace.inference.engine.service.validation import check_sampling
from headrace.platform.cluster.many_models.pull import read_body as read_pull
from headrace.serving.wire import adapters
from headrace.serving.wire.anthropic.dialect import AnthropicMessages, parse_count
from headrace.serving.wire.dialect import Dialect, RequestContext
from headrace.serving.wire.infill import Infill
from headrace.serving.wire.json_size import check_json_size
from headrace.serving.wire.ollama.dialect import OllamaChat, OllamaGenerate
from headrace.serving.wire.ollama.embeddings import OllamaEmbed, OllamaEmbeddings
from headrace.serving.wire.ollama.models import render_show
from headrace.serving.wire.openai.completions import OpenAICompletions
from headrace.serving.wire.openai.pages import is_tokens_body, parse_detokenize, parse_tokens
from headrace.serving.wire.openai.pooling import OpenAIEmbeddings, Rerank, Score
from headrace.serving.wire.openai.responses import OpenAIResponses
from headrace.serving.wire.openai.stored_responses import item_page
from headrace.serving.wire.registry import get_dialect, select_dialect
from headrace.serving.wire.tei.dialect import Tei
from headrace.serving.wire.tgi.reply import parse_tokenize
from headrace.serving.wire.toolkit.dialect import Toolkit
from headrace.serving.wire.torchserve.management import ApiError, read_model_path, read_registration
from tests.fuzz.target import Target
from tests.inference.engine.support import LIMITS as ENGINE_LIMITS
from tests.serving.wire.samples import CONTEXT, MODEL
from tests.serving.wire.test_bad_bodies import NAMES
from tests.serving.wire.test_pooled import CLASSIFIER, EMBEDDINGS, RERANKER

_LIMITS = replace(ENGINE_LIMITS, request=CONTEXT.limits, max_model_len=2048, max_prompt_tokens=2000)
_WORDS = tuple(name.encode() for name in NAMES)
_REASONS = replace(MODEL, answer_format=REASONING_TAGS)


def _parse(dialect: Dialect, context: RequestContext, data: bytes) -> None:
    """A body is understood, or refused in the format of its dialect with a status of the client's."""
    if context.model is MODEL and len(data) % 2:
        context = replace(context, model=_REASONS)
    try:
        check_json_size(data)
        select_dialect(data, dialect, context.model)
        for request in dialect.parse(data, context).requests:
            check_sampling(request.sampling, _LIMITS, vocab_size=MODEL.vocab_size)
    except HeadraceError as error:
        reply = dialect.render_error(error)
        assert 400 <= reply.status < 500, reply
        json.loads(reply.body)
        raise


def _dialect(name: str, dialect: Dialect, context: RequestContext = CONTEXT) -> Target:
    return Target(name, partial(_parse, dialect, context), words=_WORDS, is_json=True, suite_cases=400)


def _tokens(data):
    check_json_size(data)
    is_tokens_body(data)
    parse_tokens(data, CONTEXT)


def _adapter(data):
    check_json_size(data)
    for parse in (partial(adapters.parse_vllm, loads=True), partial(adapters.parse_vllm, loads=False)):
        parse(data)
    adapters.parse_register(data, {})


def _registration(data):
    """TorchServe's management API, by a JSON body or by a query."""
    try:
        parameters = msgspec.json.decode(data, type=dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        parameters = {"url": data.decode("latin-1"), "batch_size": data.decode("latin-1")}
    read_model_path("/" + data.decode("latin-1"))
    read_registration(parameters)


def _page_of_items(data):
    """A page of a stored conversation, which the platform wrote, with parameters of the client."""
    limit, order, after, *_ = [*data.decode("latin-1").split("/"), "", "", ""]
    item_page(b'[{"id":"a"},{"id":"b","x":[1]},{"id":"c"}]', limit=limit, order=order, after=after or None)


def _other(
    name: str, check: Callable[[bytes], object], refusals: tuple[type[Exception], ...] = (HeadraceError,)
) -> Target:
    return Target(name, check, refusals, words=_WORDS, is_json=True, suite_cases=400)


def _pooled(model):
    return replace(CONTEXT, model=model)


TARGETS = (
    _dialect("tgi", get_dialect("tgi-3")),
    _dialect("tgi-1", get_dialect("tgi-1.0")),
    _dialect("lmi", get_dialect("lmi-17")),
    _dialect("lmi-026", get_dialect("lmi-0.26")),
    _dialect("torchserve", get_dialect("torchserve")),
    _dialect("openai-chat", get_dialect("openai")),
    _dialect("openai-completions", OpenAICompletions()),
    _dialect("openai-responses", OpenAIResponses()),
    _dialect("openai-embeddings", OpenAIEmbeddings(), _pooled(EMBEDDINGS)),
    _dialect("anthropic", AnthropicMessages()),
    _dialect("ollama-chat", OllamaChat()),
    _dialect("ollama-generate", OllamaGenerate()),
    _dialect("ollama-embed", OllamaEmbed(), _pooled(EMBEDDINGS)),
    _dialect("ollama-embeddings", OllamaEmbeddings(), _pooled(EMBEDDINGS)),
    _dialect("tei-embed", Tei("embed"), _pooled(EMBEDDINGS)),
    _dialect("tei-rerank", Tei("rerank"), _pooled(RERANKER)),
    _dialect("tei-predict", Tei("predict"), _pooled(CLASSIFIER)),
    _dialect("toolkit-generation", Toolkit()),
    _dialect("toolkit-classification", Toolkit("text-classification"), _pooled(CLASSIFIER)),
    _dialect("toolkit-features", Toolkit("feature-extraction"), _pooled(EMBEDDINGS)),
    _dialect("jumpstart-embedding", Toolkit("jumpstart-embedding"), _pooled(EMBEDDINGS)),
    _dialect("tei-similarity", Tei("similarity"), _pooled(EMBEDDINGS)),
    _dialect("infill", Infill()),
    _dialect("rerank", Rerank(), _pooled(RERANKER)),
    _dialect("score", Score(), _pooled(RERANKER)),
    _other("anthropic-count", lambda data: parse_count(data, CONTEXT)),
    _other("ollama-show", lambda data: render_show(data, CONTEXT)),
    _other("tokenize", _tokens),
    _other("detokenize", lambda data: parse_detokenize(data, CONTEXT)),
    _other("tgi-tokenize", parse_tokenize),
    _other("ollama-pull", read_pull),
    _other("adapter", _adapter),
    _other("torchserve-models", _registration, (ApiError,)),
    _other("response-items", _page_of_items),
)
