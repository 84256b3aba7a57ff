"""A handler of the shape that the article about Inferentia2 shows, on a CPU, with a tiny Llama."""

from pathlib import Path

import pytest

from tests.headrace_handler.support import RecordingReply, call, imports_of_a_child
from tests.headrace_handler.torchserve_models import load, write_model
from tests.parity.checkpoints import write_checkpoint

pytest.importorskip("torch")

HANDLER = """
    import os
    from abc import ABC
    from threading import Thread
    from types import SimpleNamespace

    import torch
    import torch_neuronx
    from transformers import AutoConfig
    from transformers_neuronx.generation_utils import HuggingFaceGenerationModelAdapter
    from transformers_neuronx.llama.model import LlamaForSampling

    from ts.handler_utils.hf_batch_streamer import TextIteratorStreamerBatch
    from ts.handler_utils.micro_batching import MicroBatching
    from ts.protocol.otf_message_handler import send_intermediate_predict_response
    from ts.torch_handler.base_handler import BaseHandler

    class NeuronHandler(BaseHandler, ABC):
        def __init__(self):
            super().__init__()
            self.handle = MicroBatching(self)

        def initialize(self, ctx):
            settings, batching = ctx.model_yaml_config["handler"], ctx.model_yaml_config["micro_batching"]
            self.handle.parallelism = batching["parallelism"]
            self.handle.micro_batch_size = batching["micro_batch_size"]
            self.max_length = settings["max_length"]
            os.environ["NEURON_RT_NUM_CORES"] = str(settings["tp_degree"])
            assert torch_neuronx.xla_impl.data_parallel.device_count() >= settings["tp_degree"]
            path = ctx.system_properties["model_dir"] + "/" + settings["model_checkpoint_dir"]
            model = LlamaForSampling.from_pretrained(
                path, batch_size=self.handle.micro_batch_size, amp=settings["amp"], tp_degree=settings["tp_degree"])
            model.to_neuron()
            self.model = HuggingFaceGenerationModelAdapter(AutoConfig.from_pretrained(path), model)
            tokenizer = SimpleNamespace(decode=lambda ids, **_: "".join(f"{int(i)} " for i in ids))
            self.output_streamer = TextIteratorStreamerBatch(
                tokenizer, batch_size=self.handle.micro_batch_size, skip_special_tokens=True)

        def preprocess(self, requests):
            texts = [(request.get("data") or request.get("body")).decode().split() for request in requests]
            texts += [texts[-1]] * (self.handle.micro_batch_size - len(texts))
            return torch.tensor([[int(word) for word in text] for text in texts])

        def inference(self, prompts):
            options = {"input_ids": prompts, "attention_mask": torch.ones_like(prompts),
                       "streamer": self.output_streamer, "max_new_tokens": self.max_length}
            self.model.reset_generation()
            thread = Thread(target=self.model.generate, kwargs=options)
            thread.start()
            ids = self.ids_of(self.handle.get_micro_batch_idx())
            for new_text in self.output_streamer:
                send_intermediate_predict_response(
                    new_text[: len(ids)], ids, "Intermediate Prediction success", 200, self.context)
            thread.join()
            return [""] * len(ids)

        def postprocess(self, inference_output):
            return inference_output

        def ids_of(self, micro_batch_idx):
            start = micro_batch_idx * self.handle.micro_batch_size
            return {index: self.context.request_ids[batch_index]
                    for index, batch_index in enumerate(range(start, start + self.handle.micro_batch_size))
                    if batch_index in self.context.request_ids}
"""


def answers(folder: Path, micro_batch_size: int) -> list[RecordingReply]:
    config = {
        "handler": {"model_checkpoint_dir": "llama", "amp": "f32", "tp_degree": 12, "max_length": 6},
        "micro_batching": {
            "micro_batch_size": micro_batch_size,
            "parallelism": {"preprocess": 2, "inference": 1, "postprocess": 2},
        },
    }
    with imports_of_a_child("ts", "torch_neuronx", "transformers_neuronx"):
        return call(load(folder, batch_size=16, config=config), b"5 6 7", b"8 9 10", b"11 12 13", path="")


def test_micro_batches_of_one_and_of_four_stream_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_RT_NUM_CORES", "1")  # restored after the handler has changed it
    folder = write_model(tmp_path / "m", HANDLER)
    write_checkpoint("llama", folder / "llama")

    singly, by_four = answers(folder, 1), answers(folder, 4)

    assert [reply.body for reply in singly] == [reply.body for reply in by_four]
    assert [reply.body.split()[:3] for reply in singly] == [
        [b"5", b"6", b"7"],
        [b"8", b"9", b"10"],
        [b"11", b"12", b"13"],
    ]
    for reply in (*singly, *by_four):
        assert len(reply.body.split()) == 3 + 6
        assert len(reply.chunks) > 3
        assert reply.header("ts_stream_next") == "true"
