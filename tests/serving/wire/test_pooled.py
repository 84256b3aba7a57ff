"""Requests for vectors and scores: OpenAI's, TEI's, and the rerank API of Cohere, Jina and vLLM."""

import base64
import json
import math
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import Busy, EngineFailed, HeadraceError, InvalidRequest, PromptTooLong, Unavailable
from headrace.core.generation import Chunk, Finish, FinishReason, Pooled, PoolingInfo
from headrace.serving.wire.answers import Collector
from headrace.serving.wire.dialect import Dialect
from headrace.serving.wire.openai.chat import OpenAIChat
from headrace.serving.wire.openai.pooling import OpenAIEmbeddings, Rerank, Score
from headrace.serving.wire.pooled import activated
from headrace.serving.wire.registry import select_dialect
from headrace.serving.wire.tei.dialect import Tei
from headrace.serving.wire.tgi.dialect import Tgi
from headrace.serving.wire.toolkit.dialect import Toolkit
from tests.serving.wire.samples import CONTEXT, MODEL, body

EMBEDDINGS = replace(
    MODEL,
    generates=False,
    pooling=PoolingInfo(method="mean", size=3, max_tokens=64, prompts={"query": "Q: "}, default_prompt=""),
)
RERANKER = replace(
    MODEL, generates=False, pooling=PoolingInfo(method="cls", size=1, max_tokens=64, labels=("relevant",))
)
CLASSIFIER = replace(
    MODEL, generates=False, pooling=PoolingInfo(method="cls", size=2, max_tokens=64, labels=("bad", "good"))
)


def parse(dialect: Dialect, served=EMBEDDINGS, **fields: object):
    return dialect.parse(body(**fields), replace(CONTEXT, model=served))


def reply(parsed, *vectors: list[float], size: int | None = None):
    """The body of the response when the inputs have these vectors."""
    collector = Collector(parsed.requests)
    for number, vector in enumerate(vectors):
        finish = Finish(reason=FinishReason.POOLED, prompt_tokens=2, output_tokens=0)
        pooled = Pooled(struct.pack(f"<{len(vector)}f", *vector), size or len(vector))
        collector.add(Chunk(pooled=pooled, finish=finish), request=number)
    return json.loads(parsed.reply.render(collector.answers()))


def test_openai_embeddings_are_lists_of_floats_with_usage():
    parsed = parse(OpenAIEmbeddings(), input=["a", "b"], model="m")
    assert [request.prompt for request in parsed.requests] == ["a", "b"]
    answer = reply(parsed, [1, 0, 0.5], [0, 1, 0])
    assert answer["object"] == "list"
    assert answer["model"] == EMBEDDINGS.name
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert answer["data"][0] == {"object": "embedding", "index": 0, "embedding": [1, 0, 0.5]}


def test_base64_embeddings_are_little_endian_floats():
    answer = reply(parse(OpenAIEmbeddings(), input="a", encoding_format="base64"), [1, -2, 0.25])
    assert struct.unpack("<3f", base64.b64decode(answer["data"][0]["embedding"])) == (1, -2, 0.25)


@pytest.mark.parametrize(
    ("value", "prompts"),
    [("a", ["a"]), ([1, 2], [(1, 2)]), ([[1], [2, 3]], [(1,), (2, 3)]), (["a", "b"], ["a", "b"])],
)
def test_an_input_is_a_text_or_token_ids_or_a_list_of_them(value, prompts):
    assert [request.prompt for request in parse(OpenAIEmbeddings(), input=value).requests] == prompts


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": ""}, "input cannot be an empty string"),
        ({"input": []}, "empty array"),
        ({"input": [[]]}, "empty array"),
        ({"input": ["a", 1]}, "cannot be mixed"),
        ({"input": ["a"] * 2049}, "maximum length 2048"),
        ({"input": [10**9]}, "above maximum value"),
        ({"input": "a", "dimensions": 0}, "Invalid 'dimensions'"),
        ({"input": "a", "dimensions": 4}, "Invalid 'dimensions'"),
        ({"input": "a", "encoding_format": "hex"}, "Invalid 'encoding_format'"),
        ({"input": "a", "messages": [{}]}, "'messages' is not supported"),
        ({"input": "a", "prompt_name": "none"}, "expected a prompt of this model: query"),
        ({}, "`input` is missing"),
    ],
)
def test_openai_embeddings_refuse_what_they_cannot_do(fields, message):
    with pytest.raises(InvalidRequest, match=message) as raised:
        parse(OpenAIEmbeddings(), **fields)
    assert json.loads(OpenAIEmbeddings().render_error(raised.value).body)["error"]["type"] == "invalid_request_error"


def test_an_input_that_is_too_long_is_a_context_length_error_of_openai():
    error = PromptTooLong(prompt_tokens=70, max_prompt_tokens=64)
    shown = json.loads(OpenAIEmbeddings().render_error(error).body)["error"]
    assert shown["code"] == "context_length_exceeded"
    assert "your input resulted in 70 tokens" in shown["message"]


def test_truncation_and_normalisation_reach_the_engine():
    params = parse(OpenAIEmbeddings(), input="a", truncate_prompt_tokens=7, normalize=False).requests[0].pooling
    assert (params.truncate, params.max_tokens, params.normalize) == ("right", 7, False)
    params = parse(OpenAIEmbeddings(), input="a", truncate_prompt_tokens=-1, truncation_side="left").requests[0].pooling
    assert (params.truncate, params.max_tokens) == ("left", None)


def test_a_named_prompt_precedes_texts():
    assert parse(OpenAIEmbeddings(), input="a", prompt_name="query").requests[0].prompt == "Q: a"
    assert parse(Tei("embed"), inputs="a", prompt_name="query").requests[0].prompt == "Q: a"


def test_tei_embeds_one_text_and_many_as_lists_of_vectors():
    assert reply(parse(Tei("embed"), inputs="a"), [1, 0, 0]) == [[1, 0, 0]]
    assert reply(parse(Tei("embed"), inputs=["a", "b"]), [1, 0, 0], [0, 1, 0]) == [[1, 0, 0], [0, 1, 0]]
    params = parse(Tei("embed"), inputs="a", truncate=True, truncation_direction="Left").requests[0].pooling
    assert (params.truncate, params.task) == ("left", "embed")


def test_tei_embed_all_and_the_feature_extraction_pipeline_return_vectors_of_tokens():
    vectors = [1, 2, 3, 4, 5, 6]
    assert reply(parse(Tei("embed_all"), inputs="a"), vectors, size=3) == [[[1, 2, 3], [4, 5, 6]]]
    assert reply(parse(Toolkit("feature-extraction"), inputs="a"), vectors, size=3) == [[[1, 2, 3], [4, 5, 6]]]
    many = reply(parse(Toolkit("feature-extraction"), inputs=["a", "b"]), vectors, vectors, size=3)
    assert many == [[[[1, 2, 3], [4, 5, 6]]], [[[1, 2, 3], [4, 5, 6]]]]


def test_tei_reranks_by_score_and_returns_texts_if_asked():
    parsed = parse(Tei("rerank"), RERANKER, query="q", texts=["x", "y", "z"], return_text=True, raw_scores=True)
    assert [(r.prompt, r.pooling.document) for r in parsed.requests] == [("q", "x"), ("q", "y"), ("q", "z")]
    assert reply(parsed, [-1], [2], [0.5]) == [
        {"index": 1, "text": "y", "score": 2},
        {"index": 2, "text": "z", "score": 0.5},
        {"index": 0, "text": "x", "score": -1},
    ]
    plain = reply(parse(Tei("rerank"), RERANKER, query="q", texts=["x"]), [0])
    assert plain == [{"index": 0, "score": 0.5}]


def test_tei_predicts_texts_pairs_and_batches():
    single = reply(parse(Tei("predict"), CLASSIFIER, inputs="a"), [0, math.log(3)])
    assert [item["label"] for item in single] == ["good", "bad"]
    assert single[0]["score"] == pytest.approx(0.75)
    assert parse(Tei("predict"), CLASSIFIER, inputs=["a", "b"]).requests[0].pooling.document == "b"
    batch = parse(Tei("predict"), CLASSIFIER, inputs=[["a", "b"], ["c"]], raw_scores=True)
    assert [(r.prompt, r.pooling.document) for r in batch.requests] == [("a", "b"), ("c", None)]
    assert reply(batch, [1, 2], [3, 0])[1] == [{"score": 3, "label": "bad"}, {"score": 0, "label": "good"}]


def test_tei_similarities_are_products_of_unit_vectors():
    parsed = parse(Tei("similarity"), inputs={"source_sentence": "a", "sentences": ["b", "c"]})
    assert reply(parsed, [1, 0, 0], [1, 0, 0], [0.6, 0.8, 0]) == pytest.approx([1, 0.6])


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (PromptTooLong(prompt_tokens=70, max_prompt_tokens=64), 413, "validation"),
        (InvalidRequest("No."), 413, "validation"),
        (Busy("Full."), 429, "overloaded"),
        (EngineFailed("Broken."), 424, "backend"),
        (Unavailable("Later."), 503, "unhealthy"),
    ],
)
def test_tei_errors_have_teis_statuses_and_types(error: HeadraceError, status, kind):
    shown = Tei("embed").render_error(error)
    assert shown.status == status
    assert json.loads(shown.body)["error_type"] == kind


@pytest.mark.parametrize(
    ("route", "fields", "status"),
    [
        ("embed", {"inputs": ""}, 400),
        ("embed", {"inputs": []}, 400),
        ("embed", {"inputs": ["a"] * 2049}, 413),
        ("embed", {"inputs": "a", "truncation_direction": "up", "truncate": True}, 413),
        ("rerank", {"query": "q", "texts": []}, 400),
        ("rerank", {"query": "", "texts": ["a"]}, 400),
        ("predict", {"inputs": [["a", "b", "c"]]}, 413),
        ("similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 400),
    ],
)
def test_tei_refuses_empty_and_oversized_inputs(route, fields, status):
    with pytest.raises(InvalidRequest) as raised:
        parse(Tei(route), RERANKER, **fields)
    assert Tei(route).render_error(raised.value).status == status


def test_rerankers_answer_as_cohere_jina_and_vllm_do():
    parsed = parse(Rerank(), RERANKER, model="m", query="q", documents=["x", {"text": "y"}], top_n=1)
    answer = reply(parsed, [-1], [2])
    assert answer["results"] == [
        {"index": 1, "relevance_score": pytest.approx(activated([2])[0]), "document": {"text": "y"}}
    ]
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert answer["id"].startswith("rerank-")
    assert "document" not in reply(parse(Rerank(False), RERANKER, query="q", documents=["x"]), [0])["results"][0]


def test_scores_pair_one_query_with_all_documents_or_each_with_its_own():
    parsed = parse(Score(), RERANKER, text_1="q", text_2=["x", "y"])
    assert [(r.prompt, r.pooling.document) for r in parsed.requests] == [("q", "x"), ("q", "y")]
    assert [item["score"] for item in reply(parsed, [0], [0])["data"]] == [0.5, 0.5]
    parsed = parse(Score(), RERANKER, queries=["q", "p"], documents=["x", "y"])
    assert [(r.prompt, r.pooling.document) for r in parsed.requests] == [("q", "x"), ("p", "y")]
    with pytest.raises(InvalidRequest, match="3 documents"):
        parse(Score(), RERANKER, queries=["q", "p"], documents=["x", "y", "z"])


@pytest.mark.parametrize("dialect", [Rerank(), Score(), Tei("rerank")])
def test_a_model_for_embeddings_does_not_rerank(dialect):
    fields = {"query": "q", "documents": ["x"], "texts": ["x"], "queries": "q"}
    with pytest.raises(InvalidRequest, match=r"re-?ranker"):
        parse(dialect, EMBEDDINGS, **fields)


@pytest.mark.parametrize(
    ("fields", "model", "dialect"),
    [
        ({"inputs": "a"}, EMBEDDINGS, Tei("embed")),
        ({"inputs": "a"}, CLASSIFIER, Tei("predict")),
        ({"query": "q", "texts": ["x"]}, RERANKER, Tei("rerank")),
        ({"query": "q", "documents": ["x"]}, RERANKER, Rerank()),
        ({"text_1": "q", "text_2": "x"}, RERANKER, Score()),
        ({"input": "a"}, EMBEDDINGS, OpenAIEmbeddings()),
        ({"text_inputs": "a"}, EMBEDDINGS, Toolkit("jumpstart-embedding")),
        ({"inputs": "a"}, MODEL, Tgi()),
    ],
)
def test_the_fields_of_a_body_on_invocations_select_its_dialect(fields, model, dialect):
    assert select_dialect(body(**fields), Tgi(), model) == dialect


def test_jumpstart_embeds_one_text_or_several():
    jumpstart = Toolkit("jumpstart-embedding")
    for texts in (["x"], ["x", "y"]):
        parsed = parse(jumpstart, EMBEDDINGS, text_inputs=texts, mode="embedding", other=1)
        assert ([request.prompt for request in parsed.requests], parsed.ignored) == (texts, ("other",))
        assert reply(parsed, *[[1, 2]] * len(texts)) == {"embedding": [[1, 2]] * len(texts)}
    assert [request.prompt for request in parse(jumpstart, EMBEDDINGS, text_inputs="x").requests] == ["x"]
    for fields, why in (({"text_inputs": []}, "empty"), ({"text_inputs": "x", "mode": "nn_corpus"}, "'nn_corpus'")):
        with pytest.raises(InvalidRequest, match=why):
            parse(jumpstart, EMBEDDINGS, **fields)


def test_classes_have_the_form_of_the_toolkit_on_its_image_and_of_tei_elsewhere():
    for configured, dialect in ((Toolkit(), Toolkit("text-classification")), (Tei("embed"), Tei("predict"))):
        assert select_dialect(body(inputs="a"), configured, CLASSIFIER) == dialect
        assert select_dialect(body(text="a", text_pair="b"), configured, CLASSIFIER) == dialect
        assert select_dialect(body(query="q", texts=["x"]), configured, RERANKER) == Tei("rerank")
    assert select_dialect(body(inputs="a"), Toolkit(), MODEL) == Toolkit()
    assert select_dialect(body(messages=[]), Toolkit(), MODEL) == OpenAIChat()


def test_feature_extraction_changes_the_answer_to_inputs_alone():
    assert select_dialect(body(inputs="a"), Tgi(), EMBEDDINGS, returns_features=True) == Toolkit("feature-extraction")


@given(scores=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=8))
def test_activated_scores_are_probabilities(scores):
    values = activated(scores)
    assert all(0 <= value <= 1 for value in values)
    if len(scores) > 1:
        assert math.fsum(values) == pytest.approx(1)
