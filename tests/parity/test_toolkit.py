"""Bodies of the Hugging Face Inference Toolkit: Headrace's answers beside those of the pipelines of transformers."""

import json
import struct
from dataclasses import replace

import pytest
import tokenizers

from headrace.core.errors import InvalidRequest
from headrace.core.generation import Chunk, Finish, FinishReason, Pooled, PoolingInfo
from headrace.serving.wire.answers import Collector
from headrace.serving.wire.toolkit.dialect import Toolkit
from headrace_handler.contracts.sagemaker.profiles.huggingface import predict
from tests.parity.test_embeddings import write_model
from tests.serving.wire.samples import CONTEXT, MODEL, answer, whole

LABELS = ("bad", "fair", "good")
BODIES = [
    {"inputs": "red fox"},
    {"inputs": ["red fox"]},
    {"inputs": ["red fox", "blue"]},
    {"inputs": ["red fox", "blue", "a green sky", "no"]},
    {"inputs": {"text": "red fox", "text_pair": "blue sky"}},
    {"inputs": {"text": "red fox"}},
    {"inputs": [{"text": "red fox", "text_pair": "blue sky"}, {"text": "no"}]},
    {"inputs": [[["red fox", "blue sky"]]]},
    {"text": "red fox", "text_pair": "blue sky"},
    {"inputs": "red fox", "parameters": {}},
    {"inputs": "red fox", "parameters": None},
    *[
        {"inputs": inputs, "parameters": parameters}
        for inputs in ("red fox", ["red fox", "blue"], {"text": "red", "text_pair": "fox"}, [{"text": "no"}])
        for parameters in (
            {"top_k": 1},
            {"top_k": 2},
            {"top_k": 9},
            {"top_k": None},
            {"top_k": 0},
            {"function_to_apply": "sigmoid"},
            {"function_to_apply": "NONE", "top_k": 3},
            {"function_to_apply": "softmax", "top_k": None},
            {"truncation": True},
            {"truncation": "longest_first", "max_length": 4, "top_k": None},
            {"truncation": True, "max_length": 512, "padding": True},
        )
    ],
]
REFUSED = [
    {"inputs": [["red fox", "blue sky"]]},
    {"inputs": ["red", 1]},
    {"inputs": {"text": "red", "other": "x"}},
    {"inputs": 5},
    {"parameters": {}},
    {"inputs": "red", "parameters": {"function_to_apply": "relu"}},
    {"inputs": "red", "parameters": {"trust_remote_code": True}},
]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    import transformers

    folder = tmp_path_factory.mktemp("model")
    model, backend = write_model(
        "bert", folder, transformers.BertForSequenceClassification, num_labels=3, id2label=dict(enumerate(LABELS))
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer.model_max_length = 80
    return model, tokenizer


def served(problem_type: str = ""):
    info = PoolingInfo(method="cls", size=3, max_tokens=80, labels=LABELS, problem_type=problem_type)
    return replace(CONTEXT, model=replace(MODEL, generates=False, pooling=info))


def answer_of(body, classifier, problem_type: str = ""):
    """Headrace's answer if its engine computes what the model of transformers does."""

    import torch

    model, tokenizer = classifier
    parsed = Toolkit("text-classification").parse(json.dumps(body).encode(), served(problem_type))
    collector = Collector(parsed.requests)
    for number, request in enumerate(parsed.requests):
        pooling = request.pooling
        cut = {"truncation": True, "max_length": pooling.max_tokens} if pooling.truncate else {}
        encoded = tokenizer(request.prompt, pooling.document, return_tensors="pt", **cut)
        with torch.no_grad():
            logits = model(**encoded).logits[0].tolist()
        finish = Finish(reason=FinishReason.POOLED, prompt_tokens=1, output_tokens=0)
        collector.add(Chunk(pooled=Pooled(struct.pack("<3f", *logits), 3), finish=finish), request=number)
    return json.loads(parsed.reply.render(collector.answers()))


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return round(value, 5) if isinstance(value, float) else value


@pytest.mark.parametrize(
    "problem_type", ["", "single_label_classification", "multi_label_classification", "regression"]
)
def test_text_is_classified_in_the_form_of_the_pipeline(classifier, problem_type) -> None:
    import transformers

    model, tokenizer = classifier
    model.config.problem_type = problem_type or None
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device=-1)
    for body in BODIES:
        expected = predict(json.loads(json.dumps(body)), pipeline)
        assert rounded(answer_of(body, classifier, problem_type)) == rounded(expected), body
    model.config.problem_type = None


def test_all_scores_are_in_the_order_of_the_labels_as_in_transformers_4(classifier) -> None:
    parameters = {"return_all_scores": True}
    single = answer_of({"inputs": "red fox", "parameters": parameters}, classifier)
    several = answer_of({"inputs": ["red fox"], "parameters": parameters}, classifier)
    assert single == several
    assert [[score["label"] for score in scores] for scores in single] == [list(LABELS)]


@pytest.mark.parametrize("body", REFUSED, ids=json.dumps)
def test_what_the_pipeline_cannot_read_is_a_400_of_the_toolkit(classifier, body) -> None:
    with pytest.raises(InvalidRequest) as caught:
        answer_of(body, classifier)
    reply = Toolkit("text-classification").render_error(caught.value)
    assert reply.status == 400
    assert json.loads(reply.body).keys() == {"code", "type", "message"}


def test_features_have_the_form_of_the_pipeline(tmp_path) -> None:
    import torch
    import transformers

    model, backend = write_model("bert", tmp_path)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.model_max_length = 80
    pipeline = transformers.pipeline("feature-extraction", model=model, tokenizer=tokenizer, device=-1)
    info = PoolingInfo(method="mean", size=96, max_tokens=80)
    context = replace(CONTEXT, model=replace(MODEL, generates=False, pooling=info))
    for inputs in ("red fox", ["red fox"], ["red fox", "blue"]):
        parsed = Toolkit("feature-extraction").parse(json.dumps({"inputs": inputs}).encode(), context)
        collector = Collector(parsed.requests)
        for number, request in enumerate(parsed.requests):
            with torch.no_grad():
                states = model(**tokenizer(request.prompt, return_tensors="pt")).last_hidden_state[0]
            pooled = Pooled(struct.pack(f"<{states.numel()}f", *states.flatten().tolist()), 96)
            finish = Finish(reason=FinishReason.POOLED, prompt_tokens=1, output_tokens=0)
            collector.add(Chunk(pooled=pooled, finish=finish), request=number)
        assert rounded(json.loads(parsed.reply.render(collector.answers()))) == rounded(pipeline(inputs))


@pytest.fixture(scope="module")
def generator():
    import torch
    import transformers

    names = ["<pad>", "</s>", "<unk>", *"abcde", "user:", "assistant:"]
    words = {name: index for index, name in enumerate(names)}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
    config = transformers.LlamaConfig(
        vocab_size=10, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=16, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.pipeline("text-generation", model=transformers.LlamaForCausalLM(config), tokenizer=tokenizer)


USER, OTHER = {"role": "user", "content": "a"}, {"role": "user", "content": "b"}
BEGUN = {"role": "assistant", "content": "c"}


@pytest.mark.parametrize("inputs", ["a b", ["a"], ["a b", "c"], [USER], [USER, BEGUN], [[USER], [OTHER, BEGUN, USER]]])
@pytest.mark.parametrize("more", [{}, {"return_full_text": False}, {"num_return_sequences": 2, "do_sample": True}])
def test_text_is_generated_in_the_form_of_the_pipeline(generator, inputs, more) -> None:
    import transformers

    sent = {"inputs": inputs, "parameters": {"max_new_tokens": 3, **more}}
    parsed = Toolkit().parse(json.dumps(sent).encode(), CONTEXT)
    assert not parsed.stream
    assert {request.sampling.temperature for request in parsed.requests} == {1.0 if "do_sample" in more else 0.0}
    assert {request.sampling.n for request in parsed.requests} == {more.get("num_return_sequences", 1)}
    given = {"max_new_tokens": 3, "do_sample": False, **more}
    transformers.set_seed(0)
    expected = generator(inputs, **given)
    transformers.set_seed(0)
    texts = generator(inputs, **given | {"return_full_text": False})
    per_prompt = texts if isinstance(texts[0], list) else [texts]
    chunks = [
        [chunk for index, text in enumerate(found) for chunk in answer(text["generated_text"], index=index)]
        for found in per_prompt
    ]
    assert json.loads(whole(parsed, *chunks)) == expected


def sampling_of(**parameters):
    (request,) = Toolkit().parse(json.dumps({"inputs": "a", "parameters": parameters}).encode(), CONTEXT).requests
    return request.sampling


def test_parameters_of_generate_are_applied_as_it_applies_them() -> None:
    assert sampling_of() == sampling_of(temperature=0.5, top_k=3, top_p=0.5, typical_p=0.5, num_beams=1, min_length=0)
    assert (sampling_of().max_new_tokens, sampling_of().temperature) == (20, 0.0)
    sampled = sampling_of(do_sample=True, temperature=0.5, top_p=1.0, stop_sequence="x", eos_token_id=7, min_p=0.1)
    assert (sampled.temperature, sampled.top_k, sampled.top_p, sampled.min_p) == (0.5, 50, 1.0, 0.1)
    assert (sampled.stop, sampled.stop_token_ids, sampled.include_stop) == (("x",), (7,), True)
    assert sampling_of(do_sample=True, top_k=0).top_k == 0
    total = sampling_of(max_length=30)
    assert (total.max_new_tokens, total.max_total_tokens) == (None, 30)
    both = sampling_of(max_length=30, max_new_tokens=5)
    assert (both.max_new_tokens, both.max_total_tokens) == (5, None)


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ({"inputs": "a", "parameters": {"num_beams": 4}}, "num_beams"),
        ({"inputs": "a", "parameters": {"no_repeat_ngram_size": 2}}, "no_repeat_ngram_size"),
        ({"inputs": "a", "parameters": {"min_length": 9}}, "min_new_tokens"),
        ({"inputs": "a", "parameters": {"num_return_sequences": 2}}, "do_sample"),
        ({"inputs": "a", "parameters": {"custom_generate": "x/y"}}, "custom_generate"),
        ({"inputs": ["a", "b"], "stream": True}, "stream"),
        ({"inputs": ["a", {"role": "user", "content": "b"}]}, "inputs"),
        ({"inputs": []}, "inputs"),
        ({"inputs": ""}, "inputs"),
        ({"inputs": ["a"] * 129}, "inputs"),
        ({}, "inputs"),
        ([1], "object"),
    ],
)
def test_what_is_not_generated_is_refused_by_name(sent, named) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Toolkit().parse(json.dumps(sent).encode(), CONTEXT)
    reply = Toolkit().render_error(caught.value)
    assert reply.status == 400
    assert named in json.loads(reply.body)["message"]
