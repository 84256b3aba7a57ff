"""Headrace's whole engine, without HTTP: requests with token ids in, chunks out."""

import asyncio
import importlib.metadata
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.worker import Generation, serve

from headrace.core.generation import FinishReason, GenerationRequest, SamplingParams
from headrace.serving.server.engine_config import engine_config, load_engine, model_source
from headrace.serving.settings.server_settings import ServerSettings


class HeadraceEngine:
    """`AsyncEngine` on an event loop that runs only while a cell runs."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = ServerSettings(model=settings["model"], **settings["engine"])
        self._loop = asyncio.new_event_loop()
        if settings.get("packs_again"):
            with tempfile.TemporaryDirectory() as folder:
                self._engine = load_engine(replace(self._settings, cache_dir=Path(folder)))
        else:
            self._engine = load_engine(self._settings)
        self._loop.run_until_complete(self._engine.start())

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Generation:
        started_s = time.perf_counter()
        counts = self._loop.run_until_complete(self._all(prompts, num_tokens))
        return Generation(time.perf_counter() - started_s, counts)

    async def _all(self, prompts: list[list[int]], num_tokens: int) -> list[int]:
        tasks = [self._one(index, prompt, num_tokens) for index, prompt in enumerate(prompts)]
        return list(await asyncio.gather(*tasks))

    async def _one(self, index: int, prompt: list[int], num_tokens: int) -> int:
        sampling = SamplingParams(max_new_tokens=num_tokens, ignore_eos=True)
        request = GenerationRequest(request_id=f"cell-{index}", prompt=tuple(prompt), sampling=sampling)
        count = 0
        async for chunk in self._engine.generate(request):
            count += len(chunk.tokens)
            if chunk.finish is not None and chunk.finish.reason is not FinishReason.LENGTH:
                raise RuntimeError(f"The answer ended by {chunk.finish.reason}: {chunk.finish.message}")
        return count

    def describe(self) -> dict[str, Any]:
        info = self._engine.info
        requested = asdict(model_source(self._settings)) | asdict(engine_config(self._settings))
        settings = {name: value for name, value in requested.items() if value is not None}
        return {
            "version": importlib.metadata.version("headrace"),
            "weights": info.dtype,
            "kv": info.kv_dtype,
            "device": info.device,
            "engine": {name: Path(value).name if name == "model" else str(value) for name, value in settings.items()},
        }


if __name__ == "__main__":
    serve(HeadraceEngine)
