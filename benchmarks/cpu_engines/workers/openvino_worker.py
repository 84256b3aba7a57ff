"""OpenVINO GenAI's continuous batching, on the CPU."""

import time
from typing import Any

import numpy as np
import openvino
import openvino_genai
from benchmarks.harness.worker import Generation, serve


class OpenVinoEngine:
    """`ContinuousBatchingPipeline`, fed with token ids."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        scheduler = openvino_genai.SchedulerConfig()
        for name, value in settings["scheduler"].items():
            setattr(scheduler, name, value)
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            settings["model"], scheduler, "CPU", settings["properties"]
        )

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Generation:
        config = openvino_genai.GenerationConfig(
            max_new_tokens=num_tokens, min_new_tokens=num_tokens, ignore_eos=True, do_sample=False
        )
        inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        started_s = time.perf_counter()
        results = self._pipeline.generate(inputs, [config] * len(inputs))
        seconds = time.perf_counter() - started_s
        return Generation(seconds, [len(result.m_generation_ids[0]) for result in results])

    def describe(self) -> dict[str, Any]:
        settings = {name: self._settings[name] for name in ("scheduler", "properties")}
        return {"version": openvino_genai.__version__, **settings}


if __name__ == "__main__":
    serve(OpenVinoEngine)
