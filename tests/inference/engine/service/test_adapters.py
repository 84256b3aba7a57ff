"""Adapters in the engine on the fake runner: loading and unloading while requests run, slots, the prefix cache."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import BrokenModel, InsufficientMemory, InvalidRequest, NotFound, SettingsError
from headrace.inference.engine.loading.source import start_adapters
from headrace.inference.models.adapter import Adapter, LowRank
from tests.inference.engine.support import EOS, Gate, ask, ask_all, make_engine, request, running, settled
from tests.inference.models.adapter_files import random_tensors, write_adapter
from tests.inference.models.test_peft_adapter import SPEC

NO_EOS = {EOS: -1e9}
PROMPT = "a prompt of several blocks, so that the prefix cache has something to keep"


def read(path: Path) -> Adapter:
    """Read an adapter whose content is the name of its folder."""
    if path.name == "broken":
        raise BrokenModel("The folder is broken.")
    matrix = LowRank(np.zeros((2, 8), np.float32), np.zeros((8, 2), np.float32))
    return Adapter(identity=path.name, matrices={"layers.0.q": matrix})


def adapted(**options):
    return running(make_engine(read_adapter=read, bias=NO_EOS, **options))


def with_adapter(name, prompt=PROMPT, **sampling):
    return replace(request(prompt, max_new_tokens=12, **sampling), adapter=name)


async def text(engine, name, **sampling):
    return (await ask(engine, with_adapter(name, **sampling))).text


async def test_a_request_gets_the_answer_of_its_adapter_alone_and_in_company():
    async with adapted() as engine:
        await engine.load_adapter("a", Path("first"))
        await engine.load_adapter("b", Path("second"))
        alone = [await text(engine, name) for name in (None, "a", "b")]
        assert len(set(alone)) == 3
        names = [None, "a", "b", "b", None, "a"]
        together = await asyncio.gather(*[text(engine, name) for name in names])
        assert together == [alone[(None, "a", "b").index(name)] for name in names]


async def test_the_prefix_cache_is_shared_by_content_and_by_nothing_else():
    async with adapted() as engine:
        await engine.load_adapter("a", Path("first"))
        await engine.load_adapter("same", Path("elsewhere/first"))
        expected = await text(engine, "a")
        assert (await ask(engine, with_adapter(None))).finish.cached_tokens == 0
        assert (await ask(engine, with_adapter("a"))).finish.cached_tokens > 0
        same = await ask(engine, with_adapter("same"))
        assert (same.text, same.finish.cached_tokens > 0) == (expected, True)
        await engine.unload_adapter("a")
        await engine.load_adapter("a", Path("second"))
        other = await ask(engine, with_adapter("a"))
        assert other.finish.cached_tokens == 0
        assert other.text != expected


async def test_an_adapter_that_is_unloaded_finishes_its_requests_and_keeps_its_slot_until_then():
    gate = Gate()
    async with adapted(before_step=gate) as engine:
        await engine.load_adapter("a", Path("first"))
        await engine.load_adapter("b", Path("second"))
        expected = await text(engine, "a", n=1)
        gate.is_open.clear()
        running_request = asyncio.create_task(ask_all(engine, with_adapter("a", n=2)))
        await settled(engine, lambda stats: stats.num_running + stats.num_waiting == 2)
        await engine.unload_adapter("a")
        assert [info.name for info in engine.adapters] == ["b"]
        with pytest.raises(NotFound, match="`a` is not loaded"):
            await text(engine, "a")
        with pytest.raises(InsufficientMemory, match="max_loras"):
            await engine.load_adapter("c", Path("third"))
        gate.is_open.set()
        answers = await running_request
        assert [answer.text for answer in answers] == [expected, expected]
        await engine.load_adapter("c", Path("third"))
        assert len({await text(engine, name) for name in ("b", "c")} | {expected}) == 3


async def test_a_request_that_is_cancelled_or_refused_gives_its_slot_back():
    gate = Gate()
    async with adapted(before_step=gate) as engine:
        await engine.load_adapter("a", Path("first"))
        await engine.load_adapter("b", Path("second"))
        with pytest.raises(InvalidRequest):
            await ask(engine, with_adapter("a", prompt=(100_000,)))
        gate.is_open.clear()
        task = asyncio.create_task(text(engine, "a"))
        await settled(engine, lambda stats: stats.num_running + stats.num_waiting == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gate.is_open.set()
        await engine.unload_adapter("a")
        await settled(engine, lambda stats: stats.num_running == 0 and stats.num_waiting == 0)
        await engine.load_adapter("c", Path("third"))


async def test_an_adapter_is_replaced_in_place_while_requests_with_the_old_one_run():
    gate = Gate()
    async with adapted(before_step=gate) as engine:
        await engine.load_adapter("a", Path("first"))
        old = await text(engine, "a")
        gate.is_open.clear()
        task = asyncio.create_task(text(engine, "a"))
        await settled(engine, lambda stats: stats.num_running + stats.num_waiting == 1)
        await engine.load_adapter("a", Path("second"), replaces=True)
        gate.is_open.set()
        assert await task == old
        assert await text(engine, "a") != old


async def test_what_cannot_be_loaded_takes_no_slot_and_no_name():
    async with adapted() as engine:
        for _ in range(3):
            with pytest.raises(BrokenModel):
                await engine.load_adapter("a", Path("broken"))
        await engine.load_adapter("a", Path("first"))
        with pytest.raises(InvalidRequest, match="already been loaded"):
            await engine.load_adapter("a", Path("second"))
        with pytest.raises(InvalidRequest, match="empty"):
            await engine.load_adapter("", Path("second"))
        with pytest.raises(NotFound):
            await engine.unload_adapter("b")
        await engine.load_adapter("b", Path("second"))


def test_adapters_beside_the_model_and_named_ones_are_loaded_at_the_start(tmp_path):
    tensors = random_tensors(SPEC)
    beside = write_adapter(tmp_path / "model" / "adapters" / "one", tensors)
    (tmp_path / "model" / "adapters" / "notes").mkdir()
    other = write_adapter(tmp_path / "other", tensors)
    assert start_adapters([f"two={other}"], tmp_path / "model") == {"one": beside, "two": other}
    assert start_adapters([f"one={other}"], tmp_path / "model") == {"one": other}
    for wrong in ([str(other)], ["x="], [f"x={tmp_path}"], [f"x={other}", f"x={other}"]):
        with pytest.raises(SettingsError):
            start_adapters(wrong, tmp_path / "model")
