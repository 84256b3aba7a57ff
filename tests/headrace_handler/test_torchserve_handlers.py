"""The base classes and helpers of the stand-in package `ts`, under handlers like the published ones."""

import json
import logging
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from headrace_handler.standins.ts.handler_utils.micro_batching import MicroBatching
from headrace_handler.standins.ts.handler_utils.text_utils import get_tokenizer, ngrams_iterator
from hypothesis import given
from hypothesis import strategies as st

from headrace_handler.contract import LoadFailed
from headrace_handler.standins.ts.torch_handler.base_handler import compile_options
from headrace_handler.standins.ts.torch_handler.text_handler import TextHandler
from headrace_handler.standins.ts.utils.util import load_label_mapping, map_class_to_label
from tests.headrace_handler.support import call
from tests.headrace_handler.torchserve_models import load, write_model

NET = """
    import torch
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 3)
        def forward(self, x):
            return self.layer(x)
"""
CLASSIFIER = """
    import torch
    from ts.torch_handler.image_classifier import ImageClassifier
    class Digits(ImageClassifier):
        image_processing = staticmethod(lambda image: torch.zeros(2))
        topk = 1
"""


class Stages:
    """A handler whose stages add their letters to each row."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def preprocess(self, rows: list[str]) -> list[str]:
        return [row + "p" for row in rows]

    def inference(self, rows: list[str]) -> list[str]:
        self.seen.append(len(rows))
        if "bad" in "".join(rows):
            raise ValueError(rows)
        return [row + "i" for row in rows]

    def postprocess(self, rows: list[str]) -> list[str]:
        return [row + "o" for row in rows]


@given(st.lists(st.sampled_from("abc"), max_size=9), st.integers(1, 4), st.integers(1, 3))
def test_micro_batches_keep_the_order_of_requests(rows: list[str], size: int, num_threads: int) -> None:
    batching = MicroBatching(Stages(), size, {"preprocess": num_threads, "inference": 2})

    assert batching.handle(rows) == [row + "pio" for row in rows]
    assert max(batching.handler.seen, default=0) <= size
    batching.shutdown()


def test_an_exception_in_a_stage_reaches_the_caller_and_the_next_call_works() -> None:
    batching = MicroBatching(Stages(), 1)
    with pytest.raises(ValueError, match="bad"):
        batching.handle(["a", "bad", "c", "d"])

    assert batching.handle(["a"]) == ["apio"]
    batching.shutdown()


def test_stages_of_two_micro_batches_run_at_once() -> None:
    both = threading.Barrier(2, timeout=60)

    class Meeting(Stages):
        def preprocess(self, rows: list[str]) -> list[str]:
            both.wait()
            return rows

    batching = MicroBatching(Meeting(), 1)
    batching.parallelism = {"preprocess": 2}
    assert batching.handle(["a", "b"]) == ["aio", "bio"]
    batching.shutdown()


@pytest.mark.parametrize(
    ("parallelism", "message"), [({"inference": 0}, "expected at least 1"), ({"load": 1}, "expected preprocess")]
)
def test_a_parallelism_that_would_hang_is_refused(parallelism: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MicroBatching(Stages(), 1, parallelism)


def test_the_model_file_and_its_state_are_loaded(tmp_path: Path, ts_imports: None) -> None:
    torch = pytest.importorskip("torch")
    handler = """
        from ts.torch_handler.base_handler import BaseHandler
        class Handler(BaseHandler):
            def preprocess(self, data):
                return super().preprocess([row["body"] for row in data])
    """
    folder = write_model(tmp_path / "m", handler, modelFile="net.py", serializedFile="net.pt")
    (folder / "net.py").write_text(textwrap.dedent(NET))
    weights = {"layer.weight": torch.zeros(3, 2), "layer.bias": torch.tensor([1.0, 2.0, 3.0])}
    torch.save(weights, folder / "net.pt")

    replies = call(load(folder), b"[1.0, 2.0]", b"[3.0, 4.0]", content_type="application/json")

    assert [reply.json for reply in replies] == [[1.0, 2.0, 3.0]] * 2


def test_an_image_classifier_needs_neither_torchvision_nor_captum(tmp_path: Path, ts_imports: None) -> None:
    torch = pytest.importorskip("torch")
    folder = write_model(tmp_path / "m", CLASSIFIER, modelFile="net.py", serializedFile="net.pt")
    (folder / "net.py").write_text(textwrap.dedent(NET))
    torch.save({"layer.weight": torch.zeros(3, 2), "layer.bias": torch.tensor([0.0, 9.0, 0.0])}, folder / "net.pt")
    (folder / "index_to_name.json").write_text(json.dumps({"0": "zero", "1": ["n1", "one"], "2": "two"}))

    reply = call(load(folder), b"[0, 0]", content_type="application/json")[0]

    assert list(reply.json) == ["one"]


def test_a_model_without_weights_is_reported(tmp_path: Path, ts_imports: None) -> None:
    pytest.importorskip("torch")
    handler = "from ts.torch_handler.base_handler import BaseHandler\nclass H(BaseHandler): ..."

    with pytest.raises(LoadFailed, match="No model weights could be loaded"):
        load(write_model(tmp_path / "m", handler))


def test_explanations_and_descriptions_go_to_their_methods(tmp_path: Path, ts_imports: None) -> None:
    handler = """
        from ts.torch_handler.base_handler import BaseHandler
        class Handler(BaseHandler):
            def initialize(self, ctx): ...
            def preprocess(self, data): return "prepared"
            def inference(self, data): return data
            def postprocess(self, data): return [data]
            def get_insights(self, prepared, inputs, target): return [[prepared, inputs, target]]
            def describe_handle(self): return {"kind": "test"}
    """
    contract = load(write_model(tmp_path / "m", handler))

    assert call(contract, b"x", path="", content_type="text/plain")[0].body == b"prepared"
    assert call(contract, b"x", path="", content_type="text/plain", mode="explain")[0].json == ["prepared", "x", 0]
    assert call(contract, b"", mode="describe")[0].json == {"kind": "test"}


def test_stages_are_measured_where_the_model_asks_for_it(
    tmp_path: Path, ts_imports: None, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("torch")
    caplog.set_level(logging.INFO)
    handler = """
        from ts.handler_utils.timer import timed
        from ts.torch_handler.base_handler import BaseHandler
        class Handler(BaseHandler):
            def initialize(self, ctx): ...
            @timed
            def preprocess(self, data): return data
            def inference(self, data): return data
            def postprocess(self, data): return ["OK"]
    """
    contract = load(write_model(tmp_path / "m", handler), config={"handler": {"profile": True}})
    call(contract, b"")

    assert "[METRICS]ts_handler_preprocess.Milliseconds:" in caplog.text
    assert "[METRICS]HandlerTime.Milliseconds:" in caplog.text


@pytest.mark.parametrize(
    ("pt2", "options"),
    [
        (None, None),
        ("inductor", {"backend": "inductor"}),
        ({"backend": "eager"}, {"backend": "eager"}),
        ({"compile": {"enable": True, "mode": "default"}}, {"mode": "default"}),
        ({"compile": {"enable": False}}, None),
        ({"export": {"aot_compile": True}}, None),
    ],
)
def test_pt2_says_how_a_model_is_compiled(pt2: object, options: object) -> None:
    assert compile_options(pt2) == options


@pytest.mark.parametrize(
    ("content", "mapping"),
    [
        ({"0": "cat", "1": ["n1", "dog"]}, {"0": "cat", "1": "dog"}),
        ({"object_type_names": ["a", "b"]}, {"0": "a", "1": "b"}),
    ],
)
def test_label_files_have_two_forms(tmp_path: Path, content: object, mapping: object) -> None:
    (tmp_path / "index_to_name.json").write_text(json.dumps(content))

    assert load_label_mapping(str(tmp_path / "index_to_name.json")) == mapping
    assert load_label_mapping(str(tmp_path / "other.json")) is None


def test_classes_are_named_by_the_mapping_or_by_their_numbers() -> None:
    assert map_class_to_label([[0.9, 0.1]], {"3": "x", "4": "y"}, [[3, 4]]) == [{"x": 0.9, "y": 0.1}]
    assert map_class_to_label([[0.9, 0.1]]) == [{"0": 0.9, "1": 0.1}]


def test_text_is_normalized_to_words_and_ngrams() -> None:
    handler = TextHandler()

    assert handler._expand_contractions("I can't, he's; they'd've won't") == "I cannot, he is; they would have will not"
    assert handler._remove_html_tags("<b>a</b>&amp;") == "a"
    assert handler._remove_accented_characters("é") == "e"
    assert get_tokenizer("basic_english")('Say: "Yes, it\'s"') == ["say", "yes", ",", "it", "'", "s"]
    assert list(ngrams_iterator(["a", "b", "c"], 2)) == ["a", "b", "c", "a b", "b c"]


GENERATOR = """
    from abc import ABC
    from threading import Thread
    from types import SimpleNamespace

    import torch
    from ts.handler_utils.hf_batch_streamer import TextIteratorStreamerBatch
    from ts.handler_utils.micro_batching import MicroBatching
    from ts.protocol.otf_message_handler import send_intermediate_predict_response
    from ts.torch_handler.base_handler import BaseHandler

    TOKENIZER = SimpleNamespace(decode=lambda ids, **kwargs: "".join(f"w{int(i)} " for i in ids))

    class LLMHandler(BaseHandler, ABC):
        def __init__(self):
            super().__init__()
            self.handle = MicroBatching(self)

        def initialize(self, ctx):
            config = ctx.model_yaml_config["micro_batching"]
            self.handle.parallelism = config["parallelism"]
            self.handle.micro_batch_size = config["micro_batch_size"]
            self.output_streamer = TextIteratorStreamerBatch(
                TOKENIZER, batch_size=self.handle.micro_batch_size, skip_special_tokens=True)

        def preprocess(self, requests):
            rows = [int(req.get("data") or req.get("body")) for req in requests]
            return rows + [0] * (self.handle.micro_batch_size - len(rows))

        def generate(self, rows):
            for step in range(3):
                self.output_streamer.put(torch.tensor([row * 10 + step for row in rows]))
            self.output_streamer.end()

        def inference(self, rows):
            thread = Thread(target=self.generate, args=(rows,))
            thread.start()
            index = self.handle.get_micro_batch_idx()
            start = index * self.handle.micro_batch_size
            ids = {i: self.context.request_ids[at]
                   for i, at in enumerate(range(start, start + self.handle.micro_batch_size))
                   if at in self.context.request_ids}
            for new_text in self.output_streamer:
                send_intermediate_predict_response(
                    new_text[: len(ids)], ids, "Intermediate Prediction success", 200, self.context)
            thread.join()
            return [""] * len(ids)

        def postprocess(self, inference_output):
            return inference_output
"""


@pytest.mark.parametrize("micro_batch_size", [1, 4])
def test_a_generator_streams_words_through_micro_batches(
    tmp_path: Path, ts_imports: None, micro_batch_size: int
) -> None:
    pytest.importorskip("transformers")
    config = {
        "micro_batching": {
            "micro_batch_size": micro_batch_size,
            "parallelism": {"preprocess": 2, "inference": 1, "postprocess": 2},
        }
    }
    contract = load(write_model(tmp_path / "m", GENERATOR), batch_size=16, config=config)

    for _ in range(2):  # the handler uses its streamer again
        replies = call(contract, b"1", b"2", b"3", b"4", b"5")
        for row, reply in enumerate(replies, 1):
            assert reply.body.decode() == f"w{row}0 w{row}1 w{row}2 "
            assert len(reply.chunks) >= 2
            assert b"" not in reply.chunks


def test_pieces_of_a_batch_are_whole_words(ts_imports: None) -> None:
    torch = pytest.importorskip("torch")
    from ts.handler_utils.hf_batch_streamer import TextIteratorStreamerBatch

    spelled = ["One", " two", "three", "\n", "四", "五", " six"]

    def decode(ids: int | list[int], **options: object) -> str:
        return "".join(spelled[index] for index in ([ids] if isinstance(ids, int) else ids))

    streamer = TextIteratorStreamerBatch(SimpleNamespace(decode=decode), batch_size=1)
    for number in range(len(spelled)):
        streamer.put(torch.tensor([number]))
    streamer.end()
    assert [piece for (piece,) in streamer if piece] == ["One ", "twothree\n", "四", "五", " ", "six"]


def write_default(folder: Path, entry: str, net: str, weights: dict[str, object]) -> Path:
    """Write a model for a default handler, without code of its own but the network."""
    torch = pytest.importorskip("torch")
    write_model(folder, "", entry=entry, modelFile="net.py", serializedFile="net.pt")
    (folder / "net.py").write_text(textwrap.dedent(net))
    torch.save(weights, folder / "net.pt")
    return folder


def test_the_default_text_classifier_reads_words_and_pairs_of_words(tmp_path: Path, ts_imports: None) -> None:
    torch = pytest.importorskip("torch")
    net = """
        import torch
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.words = torch.nn.EmbeddingBag(3, 2, mode="sum")
            def forward(self, numbers, offsets):
                return self.words(numbers, offsets)
    """
    weights = {"words.weight": torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 99.0]])}
    folder = write_default(tmp_path / "m", "text_classifier", net, weights)
    torch.save({"not": 0, "bad": 1, "not bad": 2}, folder / "source_vocab.pt")
    (folder / "index_to_name.json").write_text('{"0": "worse", "1": "better"}')
    contract = load(folder)

    (reply,) = call(contract, b"<b>Not</b> bad!", content_type="text/plain")

    assert max(reply.json, key=reply.json.get) == "better"


@pytest.mark.parametrize(
    ("entry", "output", "answer"),
    [
        (
            "object_detector",
            (
                '[{"boxes": torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 0.0, 1.0, 1.0]]), '
                '"labels": torch.tensor([1, 2]), "scores": torch.tensor([0.75, 0.25])}]'
            ),
            [{"cat": [0.0, 1.0, 2.0, 3.0], "score": 0.75}],
        ),
        ("image_segmenter", '{"out": torch.tensor([[[[0.0]], [[99.0]]]])}', [[[1.0, 1.0]]]),
    ],
)
def test_default_handlers_of_images_word_what_their_networks_find(
    tmp_path: Path, ts_imports: None, entry: str, output: str, answer: object
) -> None:
    net = f"""
        import torch
        class Net(torch.nn.Module):
            def forward(self, images):
                return {output}
    """
    folder = write_default(tmp_path / "m", entry, net, {})
    (folder / "index_to_name.json").write_text('{"1": "cat", "2": "dog"}')
    contract = load(folder)

    (reply,) = call(contract, b"[[[0.0]]]", content_type="application/json")

    assert reply.json == answer
