"""Embeddings, scores and reranking by the clients that people have, against the server without a model."""

import concurrent.futures
import threading

import httpx
import pytest
from huggingface_hub import InferenceClient

from headrace.core.errors import Busy
from headrace.core.telemetry import setup_logging
from headrace.testing.echo import EchoBackend, EchoScript
from tests.serving.server.conftest import serving
from tests.waiting import WAIT_S


@pytest.fixture(scope="module")
def shared_embedder():
    with serving(EchoBackend(max_model_len=16, generates=False)) as echo:
        yield echo


@pytest.fixture
def embedder(shared_embedder):
    """A server that writes the log of the process, which the server started last has taken over."""
    setup_logging(format="json", level="info", stream=shared_embedder.log)
    return shared_embedder


@pytest.fixture(scope="module")
def reranker():
    with serving(EchoBackend(max_model_len=16, generates=False, labels=("relevant",))) as echo:
        yield echo


@pytest.fixture
def client(embedder):
    import openai

    with openai.OpenAI(base_url=f"{embedder.url}/v1", api_key="-", max_retries=0) as made:
        yield made


def test_openai_embeds_texts_and_token_ids_by_base64_or_floats(client):
    texts = ["red green", "red", "blue"]
    by_default = client.embeddings.create(model="echo", input=texts)
    floats = client.embeddings.create(model="echo", input=texts, encoding_format="float")
    for ours, plain in zip(by_default.data, floats.data, strict=True):
        assert ours.embedding == pytest.approx(plain.embedding, abs=1e-6)
    assert by_default.usage.prompt_tokens == by_default.usage.total_tokens == 4
    assert [item.index for item in by_default.data] == [0, 1, 2]
    assert len(client.embeddings.create(model="echo", input=[5, 6], dimensions=3).data[0].embedding) == 3


def test_openai_embeds_two_thousand_inputs_in_their_order(client):
    answer = client.embeddings.create(model="echo", input=[f"word{number}" for number in range(2048)])
    last = client.embeddings.create(model="echo", input="word2047")
    assert len(answer.data) == 2048
    assert answer.data[2047].embedding == last.data[0].embedding


def test_openai_raises_its_own_errors(client):
    import openai

    with pytest.raises(openai.BadRequestError, match="maximum context length is 16 tokens"):
        client.embeddings.create(model="echo", input=" ".join("w" * 17))
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="echo", input="a", dimensions=9)
    with pytest.raises(openai.BadRequestError, match="generates no text"):
        client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "hi"}])


def test_a_batch_waits_for_places_that_others_took_and_a_single_input_is_refused(embedder):
    """The first input of a batch is taken; the second one is refused until the first has ended."""
    relayed, refused = [], threading.Event()
    relay = embedder.backend.relay

    async def crowded(request, take, drain):
        if request.prompt == "second" and not refused.is_set():
            refused.set()
            raise Busy("Full.")
        await relay(request, take, drain)
        relayed.append(request.prompt)

    embedder.backend.relay = crowded
    try:
        answer = embedder.post("/embed", {"inputs": ["first", "second", "third"]})
        assert answer.status_code == 200
        assert sorted(relayed) == ["first", "second", "third"]
        refused.clear()
        assert embedder.post("/embed", {"inputs": "second"}).status_code == 429
    finally:
        embedder.backend.relay = relay


def test_closing_the_connection_aborts_all_inputs(embedder):
    embedder.backend.script = EchoScript(delay_s=5.0)
    try:
        with pytest.raises(httpx.ReadTimeout):
            embedder.post("/embed", {"inputs": ["closed one", "closed two"]}, timeout=httpx.Timeout(WAIT_S, read=1.5))
        embedder.until(lambda: embedder.service.limiter.in_flight == 0, "the request ends")
        assert len(embedder.backend.aborted) >= 2
    finally:
        embedder.backend.script = EchoScript()


def test_requests_are_counted_and_logged_without_an_answer(embedder):
    num_before = len(embedder.records(0))
    embedder.post("/v1/embeddings", {"input": "one two three"})
    record = embedder.records(num_before + 1)[-1]
    assert record["prompt_tokens"] == 3
    assert record["dialect"] == "openai-embeddings"
    assert record["finish"] == "pooled"
    assert embedder.service.metrics.by_finish["pooled"] >= 1
    assert 'reason="pooled"' in embedder.client.get("/metrics").text


def test_the_hugging_face_client_extracts_features_and_compares_sentences(embedder):
    client = InferenceClient(f"{embedder.url}/embed")
    assert client.feature_extraction("red green").shape == (1, 8)
    answer = embedder.post("/similarity", {"inputs": {"source_sentence": "red", "sentences": ["red", "blue"]}}).json()
    assert answer == pytest.approx([1.0, 0.0])


def test_tei_routes_and_invocations_answer_alike(embedder):
    vectors = embedder.post("/embed", {"inputs": ["red", "green blue"]}).json()
    assert embedder.post("/invocations", {"inputs": ["red", "green blue"]}).json() == vectors
    assert len(embedder.post("/embed_all", {"inputs": "red green"}).json()[0]) == 2
    too_long = embedder.post("/embed", {"inputs": " ".join("w" * 17)})
    assert (too_long.status_code, too_long.json()["error_type"]) == (413, "validation")
    assert "must have less than 16 tokens. Given: 17" in too_long.json()["error"]


def test_in_teis_dialect_a_model_that_generates_text_computes_vectors_on_invocations():
    with serving(EchoBackend(max_model_len=16), dialect="tei") as echo:
        vectors = echo.post("/embed", {"inputs": ["red", "green blue"]}).json()
        assert echo.post("/invocations", {"inputs": ["red", "green blue"]}).json() == vectors
        assert echo.post("/invocations", {"input": "red"}).json()["data"][0]["embedding"] == vectors[0]
        assert "embedding" in echo.client.get("/info").json()["model_type"]
        assert (
            echo.post("/invocations", {"messages": [{"role": "user", "content": "Hi"}]}).json()["error_type"]
            == "validation"
        )
        assert echo.post("/generate", {"inputs": "red"}).status_code == 200


def test_tei_describes_the_model(embedder, reranker):
    info = embedder.client.get("/info").json()
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["max_input_length"] == 16
    assert "reranker" in reranker.client.get("/info").json()["model_type"]


def test_feature_extraction_returns_the_vectors_of_all_tokens():
    with serving(EchoBackend(generates=False), task="features") as echo:
        assert [len(vector) for vector in echo.post("/invocations", {"inputs": "red green"}).json()[0]] == [8, 8]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_a_reranker_orders_documents(reranker, path):
    body = {"model": "echo", "query": "red fox", "documents": ["blue sky", "a red fox", "red"], "top_n": 2}
    results = reranker.post(path, body).json()["results"]
    assert [result["index"] for result in results] == [1, 2]
    assert results[0]["relevance_score"] > 0.9


def test_a_reranker_takes_teis_body_and_vllms_scores(reranker):
    ranked = reranker.post("/rerank", {"query": "red fox", "texts": ["blue", "red fox"]}).json()
    assert [item["index"] for item in ranked] == [1, 0]
    scores = reranker.post("/score", {"text_1": "red fox", "text_2": ["red fox", "blue"]}).json()["data"]
    assert scores[0]["score"] > scores[1]["score"]
    assert reranker.post("/v1/embeddings", {"input": "a"}).status_code == 200


def test_many_clients_at_once_get_their_own_vectors(embedder):
    def embed(word):
        return embedder.post("/embed", {"inputs": [word, word]}).json()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(embed, [f"w{number}" for number in range(40)], timeout=WAIT_S))
    assert all(first == second for first, second in answers)
