"""`HuggingFaceService` and `StreamingUtils` of the stand-in, over a tiny network in transformers."""

import json
import threading
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from headrace_handler.contracts.djl import messages
from headrace_handler.standins import djl_python
from headrace_handler.standins.djl_python.outputs import Output
from headrace_handler.standins.djl_python.streaming_utils import StreamingUtils
from tests.headrace_handler.djl_models import LeavingReply, LoadModel, item, predict
from tests.headrace_handler.djl_models import load_model as load_model  # noqa: PLC0414 - a fixture
from tests.waiting import WAIT_S

WORDS = ["<eos>", "hello", "there", "one", "two", "three", "four", "five"]
SERVICE = """
    from djl_python import Input
    from djl_python.huggingface import HuggingFaceService
    _service = HuggingFaceService()
    def handle(inputs: Input):
        if not _service.initialized:
            _service.initialize(inputs.get_properties())
        return None if inputs.is_empty() else _service.inference(inputs)
"""
CUSTOM = """
    import types
    from djl_python import Input
    from djl_python.encode_decode import decode
    from djl_python.huggingface import HuggingFaceService
    _service = HuggingFaceService()

    def custom_parse_input(self, inputs):
        input_data, input_size, parameters, errors = [], [], [], {}
        batch = inputs.get_batches()
        for index, item in enumerate(batch):
            try:
                payload = decode(item, item.get_property("Content-Type"))
                input_data.append(payload.pop("prompt"))
                input_size.append(1)
                parameters.append(payload)
            except Exception as error:
                errors[index] = str(error)
        return input_data, input_size, parameters, errors, batch

    def handle(inputs: Input):
        if not _service.initialized:
            _service.initialize(inputs.get_properties())
            _service.parse_input = types.MethodType(custom_parse_input, _service)
        return None if inputs.is_empty() else _service.inference(inputs)
"""
GENERATOR = """
    from djl_python import Input, Output
    from djl_python.streaming_utils import StreamingUtils
    from transformers import AutoModelForCausalLM, AutoTokenizer
    parts = {}
    def handle(inputs: Input):
        if not parts:
            name = inputs.get_properties()["model_id"]
            parts["model"] = AutoModelForCausalLM.from_pretrained(name)
            parts["tokenizer"] = AutoTokenizer.from_pretrained(name)
        if inputs.is_empty():
            return None
        generate = StreamingUtils.get_stream_generator("Accelerate")
        return Output().add_stream_content(
            generate(parts["model"], parts["tokenizer"], inputs.get_as_json()["inputs"], "cpu", max_new_tokens=3)
        )
"""


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("gpt2")
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)
    config = GPT2Config(vocab_size=len(WORDS), n_positions=32, n_embd=8, n_layer=1, n_head=1, eos_token_id=None)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return str(folder)


def prompts(*texts: str) -> bytes:
    return json.dumps({"inputs": list(texts), "parameters": {"max_new_tokens": 2, "do_sample": False}}).encode()


def test_a_service_generates_for_each_prompt(load_model: LoadModel, gpt2: str) -> None:
    reply = predict(load_model(SERVICE, {"model_id": gpt2}), item(prompts("hello there", "one two")))

    generated = [result["generated_text"] for result in reply.json]
    assert (reply.status, len(generated)) == (200, 2)
    assert generated[0].startswith("hello there")
    assert dict(reply.headers) == {"Content-Type": "application/json"}


def test_a_service_answers_each_request_of_a_batch(load_model: LoadModel, gpt2: str) -> None:
    items = [item(prompts("hello")), item(prompts("one", "two"))]

    predict(load_model(SERVICE, {"model_id": gpt2}), *items)

    assert [len(each.reply.json) for each in items] == [1, 2]


def test_a_model_may_replace_the_parser_of_the_service(load_model: LoadModel, gpt2: str) -> None:
    bodies = ({"prompt": "hello", "max_new_tokens": 1}, {"text": "one"}, {"prompt": "two", "max_new_tokens": 2})
    items = [item(json.dumps(body).encode()) for body in bodies]

    predict(load_model(CUSTOM, {"model_id": gpt2}), *items)

    first, broken, last = (each.reply.json for each in items)
    assert first[0]["generated_text"].startswith("hello")
    assert broken == "'prompt'"
    assert last[0]["generated_text"].startswith("two")


def test_a_streaming_service_sends_the_prompt_and_then_token_by_token(load_model: LoadModel, gpt2: str) -> None:
    reply = predict(load_model(SERVICE, {"model_id": gpt2, "enable_streaming": "true"}), item(prompts("hello there")))

    lines = [json.loads(chunk)["outputs"] for chunk in reply.chunks]
    assert lines[0] == ["hello there"]
    assert len(lines) == 3
    assert dict(reply.headers) == {"content-type": "application/jsonlines"}


def test_a_stream_generator_yields_the_next_text_of_every_sequence(load_model: LoadModel, gpt2: str) -> None:
    reply = predict(load_model(GENERATOR, {"model_id": gpt2}), item(prompts("hello", "one")))

    assert [len(json.loads(chunk)["outputs"]) for chunk in reply.chunks] == [2, 2, 2]


class EndlessModel:
    """Generates until its streamer refuses."""

    device = "cpu"
    ended = threading.Event()

    def generate(self, streamer: Any, **_: Any) -> None:
        import torch

        try:
            while True:
                streamer.put(torch.tensor([1]))
        finally:
            self.ended.set()


def test_a_client_that_leaves_ends_the_generation(gpt2: str) -> None:
    from transformers import AutoTokenizer

    model, tokenizer = EndlessModel(), AutoTokenizer.from_pretrained(gpt2)
    reply = LeavingReply(after=3)
    streamer = StreamingUtils.use_hf_default_streamer(model, tokenizer, ["one"], None)

    messages.send(Output().add_stream_content(streamer), [reply], djl_python)

    assert model.ended.wait(WAIT_S)
    assert reply.chunks == [b'{"outputs": ["hello"]}\n'] * 3
