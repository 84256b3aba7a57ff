"""Transformers' continuous batching, on the CPU."""

import time
from typing import Any

import torch
import transformers
from benchmarks.harness.worker import Generation, serve


class TransformersEngine:
    """`generate_batch`, fed with token ids."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        torch.set_num_threads(settings["threads"])
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            settings["model"], dtype=torch.bfloat16, attn_implementation=settings["attention"]
        )

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Generation:
        config = transformers.GenerationConfig(
            max_new_tokens=num_tokens, min_new_tokens=num_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        started_s = time.perf_counter()
        outputs = self._model.generate_batch(inputs=prompts, generation_config=config, progress_bar=False)
        seconds = time.perf_counter() - started_s
        return Generation(seconds, [len(output.generated_tokens) for output in outputs.values()])

    def describe(self) -> dict[str, Any]:
        versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        return {"version": versions, "attention": self._settings["attention"], "threads": self._settings["threads"]}


if __name__ == "__main__":
    serve(TransformersEngine)
