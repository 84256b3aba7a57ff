"""A handler for Llama on AWS Inferentia2: micro-batches of prompts, and each word is sent when it is there."""

import os
from pathlib import Path
from threading import Thread

import torch_neuronx
from transformers import AutoConfig, AutoTokenizer
from transformers_neuronx.generation_utils import HuggingFaceGenerationModelAdapter
from transformers_neuronx.llama.model import LlamaForSampling
from ts.handler_utils.hf_batch_streamer import TextIteratorStreamerBatch
from ts.handler_utils.micro_batching import MicroBatching
from ts.protocol.otf_message_handler import send_intermediate_predict_response
from ts.torch_handler.base_handler import BaseHandler


class LlamaHandler(BaseHandler):
    def __init__(self):
        super().__init__()
        self.handle = MicroBatching(self)

    def initialize(self, ctx):
        folder = Path(ctx.system_properties["model_dir"])
        settings, batching = ctx.model_yaml_config["handler"], ctx.model_yaml_config["micro_batching"]
        self.handle.parallelism = batching["parallelism"]
        self.handle.micro_batch_size = batching["micro_batch_size"]
        self.max_new_tokens = settings["max_new_tokens"]

        os.environ["NEURONX_CACHE"] = "on"
        os.environ["NEURONX_DUMP_TO"] = str(folder / "neuron_cache")
        os.environ["NEURON_CC_FLAGS"] = "--model-type=transformer-inference"
        os.environ["NEURON_RT_NUM_CORES"] = str(settings["tp_degree"])
        if torch_neuronx.xla_impl.data_parallel.device_count() < settings["tp_degree"]:
            raise RuntimeError(f"The host has fewer NeuronCores than tp_degree, {settings['tp_degree']}.")

        checkpoint = folder / settings["model_checkpoint_dir"]
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
        self.tokenizer.pad_token = self.tokenizer.eos_token
        model = LlamaForSampling.from_pretrained(
            checkpoint,
            batch_size=self.handle.micro_batch_size,
            amp=settings["amp"],
            tp_degree=settings["tp_degree"],
        )
        model.to_neuron()
        self.model = HuggingFaceGenerationModelAdapter(AutoConfig.from_pretrained(checkpoint), model)
        self.streamer = TextIteratorStreamerBatch(
            self.tokenizer, batch_size=self.handle.micro_batch_size, skip_special_tokens=True
        )
        self.initialized = True

    def preprocess(self, requests):
        bodies = [request.get("data") or request.get("body") for request in requests]
        prompts = [body.decode() if isinstance(body, bytes | bytearray) else body for body in bodies]
        prompts += [""] * (self.handle.micro_batch_size - len(prompts))  # the compiled model has rows for all of them
        return self.tokenizer(prompts, return_tensors="pt", padding=True)

    def inference(self, inputs):
        options = {"max_new_tokens": self.max_new_tokens, "do_sample": False, "streamer": self.streamer}
        self.model.reset_generation()
        generating = Thread(target=self.model.generate, kwargs={**inputs, **options})
        generating.start()
        ids = self.request_ids(self.handle.get_micro_batch_idx())
        for words in self.streamer:
            send_intermediate_predict_response(
                words[: len(ids)], ids, "Intermediate Prediction success", 200, self.context
            )
        generating.join()
        return [""] * len(ids)

    def postprocess(self, outputs):
        return outputs

    def request_ids(self, micro_batch_index):
        """Return the ids of a micro-batch's requests by their rows."""
        start = micro_batch_index * self.handle.micro_batch_size
        ids = self.context.request_ids
        return {row: ids[start + row] for row in range(self.handle.micro_batch_size) if start + row in ids}
