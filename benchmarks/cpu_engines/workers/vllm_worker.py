"""vLLM as a library, on the CPU."""

import os
import time
from typing import Any

from benchmarks.harness.worker import Generation, serve

os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
# The engine in this process: with two cores a second process that polls costs more than it gains.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import vllm


class VllmEngine:
    """`vllm.LLM` without tokenizer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._llm = vllm.LLM(
            settings["model"],
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            disable_log_stats=True,
            **settings["engine"],
        )

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Generation:
        params = vllm.SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        started_s = time.perf_counter()
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        seconds = time.perf_counter() - started_s
        return Generation(seconds, [len(output.outputs[0].token_ids) for output in outputs])

    def describe(self) -> dict[str, Any]:
        environment = {name: value for name, value in os.environ.items() if name.startswith("VLLM_")}
        return {"version": vllm.__version__, "engine": self._settings["engine"], "environment": environment}


if __name__ == "__main__":
    serve(VllmEngine)
