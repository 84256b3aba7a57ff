"""
Produce one token of a model and print it: the parent times the whole life of this process until then.

    python -m benchmarks.gpu.first_token FOLDER cuda bf16
"""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.engines import running_engine

from headrace.core.generation import GenerationRequest, SamplingParams
from headrace.core.telemetry import setup_logging
from headrace.serving.settings.server_settings import ServerSettings


async def main(folder: str, device: str, dtype: str) -> None:
    """Load the engine as `headrace serve` does, and ask for one token."""
    settings = ServerSettings(model=folder, cache_dir=Path(folder), backend="torch")
    sampling = SamplingParams(max_new_tokens=1, ignore_eos=True)
    async with running_engine(replace(settings, device=device, dtype=dtype)) as engine:
        async for chunk in engine.generate(GenerationRequest(request_id="first", prompt=(5, 6, 7), sampling=sampling)):
            for token in chunk.tokens:
                print("token", token.id, flush=True)


if __name__ == "__main__":
    setup_logging(level="warning")
    asyncio.run(main(*sys.argv[1:]))
