"""Ollama's lists and facts of models, and its embeddings, read by the types of its Python package."""

import json
from array import array
from dataclasses import replace

import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.generation import (
    AdapterInfo,
    Chunk,
    Finish,
    FinishReason,
    Pooled,
    PoolingInfo,
)
from headrace.serving.wire.ollama.embeddings import OllamaEmbed, OllamaEmbeddings
from headrace.serving.wire.ollama.models import render_running, render_show, render_tags, render_version
from tests.serving.wire.samples import CONTEXT, MODEL, body, whole
from tests.serving.wire.test_ollama import THINKING, timings

ADAPTER = AdapterInfo(name="org/poet", path="/a", rank=8, created_s=9)


def test_the_model_and_its_adapters_are_listed_with_a_tag():
    import ollama

    listed = ollama.ListResponse.model_validate_json(render_tags(MODEL, [ADAPTER]))
    model, adapter = listed.models
    assert (model.model, adapter.model) == ("smol:latest", "org/poet:latest")
    assert model.size == 270_000_000
    assert (model.details.parameter_size, model.details.quantization_level) == ("135.00M", "BF16")
    assert (model.details.parent_model, adapter.details.parent_model) == ("", "smol")
    assert model.digest != adapter.digest
    assert len(model.digest) == 64


@pytest.mark.parametrize(("device", "size_vram"), [("cpu (avx512)", 0), ("cuda (sm90)", 67_500_000)])
def test_the_model_stays_loaded(device, size_vram):
    import ollama

    model = replace(MODEL, device=device, dtype="w4a8", name="org/smol:1b")
    (running,) = ollama.ProcessResponse.model_validate_json(render_running(model, [])).models
    assert (running.name, running.size_vram, running.context_length) == ("org/smol:1b", size_vram, 2048)
    assert running.expires_at.year == 2300


def test_a_model_is_shown_with_its_size_and_what_it_can_do():
    import ollama

    pooling = PoolingInfo(method="mean", size=3, max_tokens=9)
    context = replace(THINKING, model=replace(THINKING.model, pooling=pooling))
    shown = ollama.ShowResponse.model_validate_json(render_show(body(name="smol"), context))
    assert shown.capabilities == ["completion", "tools", "thinking", "embedding"]
    assert shown.modelinfo["llama.context_length"] == 2048
    with pytest.raises(InvalidRequest, match="`model` is missing"):
        render_show(b"{}", context)


def test_the_version_is_one_that_clients_can_compare():
    assert [part.isdigit() for part in json.loads(render_version())["version"].split(".")] == [True] * 3


def pooled(*values) -> list[Chunk]:
    data = array("f", values).tobytes()
    end = Finish(reason=FinishReason.POOLED, prompt_tokens=2, output_tokens=0)
    return [Chunk(pooled=Pooled(data, len(values)), finish=end)]


def test_inputs_become_vectors():
    import ollama

    parsed = OllamaEmbed().parse(body(model="m", input=["a", "b"], dimensions=2), replace(CONTEXT, timings=timings))
    assert [request.pooling.truncate for request in parsed.requests] == ["right", "right"]
    answer = ollama.EmbedResponse.model_validate_json(whole(parsed, pooled(1, 0), pooled(0, 1)))
    assert answer.embeddings == [[1, 0], [0, 1]]
    assert (answer.prompt_eval_count, answer.total_duration) == (4, 3_000_000_000)


def test_the_older_route_has_one_vector_as_the_model_scales_it():
    import ollama

    info = PoolingInfo(method="mean", size=2, max_tokens=9, normalizes=False)
    context = replace(CONTEXT, model=replace(MODEL, pooling=info))
    parsed = OllamaEmbeddings().parse(body(model="m", prompt="a"), context)
    assert not parsed.requests[0].pooling.normalize
    assert ollama.EmbeddingsResponse.model_validate_json(whole(parsed, pooled(3, 4))).embedding == [3, 4]


@pytest.mark.parametrize("fields", [{"input": ""}, {"input": []}, {"input": "a", "dimensions": 0}])
def test_inputs_that_cannot_be_embedded_are_refused(fields):
    with pytest.raises(InvalidRequest):
        OllamaEmbed().parse(body(model="m", **fields), CONTEXT)
