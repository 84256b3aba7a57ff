"""
One engine without HTTP, in its own process, which answers commands.

`{"embed": [text, ...]}` returns the vectors, `{"batches": [[text, ...], ...], "seconds": s}` the seconds of each batch.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.worker import Answer, answer_commands

Embed = Callable[[list[str]], list[list[float]]]


def headrace(settings: dict[str, Any]) -> Embed:
    from headrace.core.generation import GenerationRequest, PoolingParams
    from headrace.serving.server.engine_config import load_engine
    from headrace.serving.settings.server_settings import ServerSettings

    loop = asyncio.new_event_loop()
    engine = load_engine(ServerSettings(**settings))
    loop.run_until_complete(engine.start())

    async def embed(index: int, text: str) -> list[float]:
        request = GenerationRequest(request_id=str(index), prompt=text, pooling=PoolingParams())
        async for chunk in engine.generate(request):
            return list(chunk.pooled.vectors()[0])
        raise RuntimeError("no vector came")

    async def embed_all(texts: list[str]) -> list[list[float]]:
        return await asyncio.gather(*(embed(index, text) for index, text in enumerate(texts)))

    return lambda texts: loop.run_until_complete(embed_all(texts))


def transformers(settings: dict[str, Any]) -> Embed:
    import tokenizers
    import torch
    import transformers as library

    torch.set_num_threads(settings["threads"])
    folder, dtype = Path(settings["model"]), getattr(torch, settings["dtype"])
    model = library.AutoModel.from_pretrained(folder, dtype=dtype).eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()

    @torch.inference_mode()
    def embed(texts: list[str]) -> list[list[float]]:
        encodings = tokenizer.encode_batch(texts)
        ids = torch.tensor([encoding.ids for encoding in encodings])
        mask = torch.tensor([encoding.attention_mask for encoding in encodings])
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return torch.nn.functional.normalize(pooled).tolist()

    return embed


def start(settings: dict[str, Any]) -> tuple[dict[str, Any], Answer]:
    engine = {"headrace": headrace, "transformers": transformers}[settings.pop("engine")]
    embed = engine(settings)

    def answer(command: dict[str, Any]) -> dict[str, Any]:
        if "embed" in command:
            return {"found": embed(command["embed"])}
        return {"found": time_batches(embed, command["batches"], command["seconds"])}

    return {}, answer


def time_batches(embed: Embed, batches: list[list[str]], seconds: float) -> list[float]:
    """Embed the batches in turn until the time is over, at least one; return the seconds of each."""
    taken: list[float] = []
    stop = time.perf_counter() + seconds
    for batch in itertools.cycle(batches):
        started = time.perf_counter()
        if taken and started >= stop:
            return taken
        embed(batch)
        taken.append(time.perf_counter() - started)
    raise AssertionError("no batches")


if __name__ == "__main__":
    answer_commands(start)
