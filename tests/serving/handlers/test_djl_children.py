"""DJL's `model.py` in a child process, as a model server calls it."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
import pytest_asyncio

from headrace.serving.handlers.djl import make_spec
from headrace.serving.handlers.errors import LoadError, Refused
from headrace.serving.handlers.exchange import HandlerRequest, PendingResponse, request_part
from headrace.serving.handlers.found import find_model
from headrace.serving.handlers.pool import HandlerPool
from headrace.serving.handlers.spec import HandlerSpec

from .support import answer, pool_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = """
import os, sys
from djl_python import Input, Output

seen = []

def handle(inputs: Input):
    if inputs.is_empty():
        seen.append(inputs.get_property("model_id"))
        return None
    text = inputs.get_as_string()
    if text == "exit":
        sys.exit()
    if text == "stream":
        return Output().add_stream_content(iter("abc"), None)
    return Output().add_as_json({"text": text, "model_id": seen, "folder": os.getcwd()})
"""
ASYNC = """
from djl_python import Output

async def pieces():
    for text in "abc":
        yield Output().add(Output.binary_encode({"data": text, "last": text == "c"}))

async def handle(inputs):
    return None if inputs.is_empty() else pieces()
"""


def spec_of(folder: Path, code: str, properties: str = "") -> HandlerSpec:
    (folder / "model.py").write_text(code)
    (folder / "serving.properties").write_text(properties)
    environment = {"PATH": os.environ["PATH"]}
    return replace(make_spec(find_model(folder, model_name="m", env={})), environment=environment)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HandlerPool]:
    folder = tmp_path_factory.mktemp("model")
    async with pool_of(spec_of(folder, MODEL, "engine=Python\noption.model_id=org/name\nmaxWorkers=1\n")) as pool:
        yield pool


async def invoke(pool: HandlerPool, body: bytes) -> PendingResponse:
    return pool.submit(HandlerRequest(request_id="r", headers=[], parts=[await request_part(body)]))


async def test_the_first_call_gets_the_options_and_the_folder_is_the_current_one(pool: HandlerPool) -> None:
    status, body = await answer(await invoke(pool, b"hi"))

    folder = str(pool.spec.load.model_dir)
    expected = f'{{\n  "text":"hi",\n  "model_id":[\n    "org/name"\n  ],\n  "folder":"{folder}"\n}}'
    assert (status, body.decode()) == (200, expected)


async def test_an_exit_is_a_503_of_its_request_and_the_next_one_is_answered(pool: HandlerPool) -> None:
    lost, queued = await asyncio.gather(invoke(pool, b"exit"), invoke(pool, b"hi"))

    status, body = await answer(lost)
    assert status == 503
    assert b"WlmException" in body
    assert (await answer(queued))[0] == 200


async def test_a_stream_has_a_part_for_each_item(pool: HandlerPool) -> None:
    response = await invoke(pool, b"stream")
    await response.head()

    assert [bytes(await response.part() or b"") for _ in range(3)] == [b"a", b"b", b"c"]
    response.close()


async def test_an_asynchronous_handler_streams_from_a_child(tmp_path: Path) -> None:
    async with pool_of(spec_of(tmp_path, ASYNC)) as pool:
        assert await answer(await invoke(pool, b"x")) == (200, b"abc")


async def test_a_handler_that_passes_predict_timeout_is_killed_and_the_next_request_is_answered(tmp_path: Path) -> None:
    code = """
        import time
        def handle(inputs):
            if not inputs.is_empty() and inputs.get_as_string() == "hang":
                time.sleep(600)
    """
    spec = spec_of(tmp_path, dedent(code), "option.predict_timeout=3\nmaxWorkers=1\n")
    async with pool_of(spec) as pool:
        first_pid = pool.workers[0].child and pool.workers[0].child.pid
        status, body = await answer(await invoke(pool, b"hang"))
        after = await answer(await invoke(pool, b"hi"))
        assert pool.workers[0].child is not None
        assert pool.workers[0].child.pid != first_pid

    assert (status, json.loads(body)) == (
        503,
        {"code": 503, "type": "WlmException", "message": "java.util.concurrent.TimeoutException"},
    )
    assert after == (204, b"")


async def test_a_model_that_passes_model_loading_timeout_does_not_start(tmp_path: Path) -> None:
    code = "import time\ndef handle(inputs):\n    time.sleep(600)\n"
    pool = HandlerPool(spec_of(tmp_path, code, "option.model_loading_timeout=1\n"))

    with pytest.raises(LoadError, match="1 s"):
        await pool.start()

    assert not pool.workers


async def test_a_request_over_the_queues_size_is_refused_in_djls_words(tmp_path: Path) -> None:
    code = "import time\ndef handle(inputs):\n    if not inputs.is_empty():\n        time.sleep(600)\n"
    async with pool_of(spec_of(tmp_path, code, "job_queue_size=1\nmaxWorkers=1\n")) as pool:
        held = [await invoke(pool, b"x") for _ in range(2)]
        with pytest.raises(Refused) as refused:
            await invoke(pool, b"x")
        for response in held:
            response.close()

    assert refused.value.response.status == 503
    assert json.loads(refused.value.response.body) == {
        "code": 503,
        "type": "WlmCapacityException",
        "message": "Worker queue capacity exceeded for model: m (READY)",
    }


async def test_a_model_that_runs_out_of_memory_while_it_loads_says_so(tmp_path: Path) -> None:
    pool = HandlerPool(spec_of(tmp_path, "def handle(inputs):\n    raise MemoryError\n"))

    with pytest.raises(LoadError, match="OOM: MemoryError"):
        await pool.start()

    await pool.close(deadline_s=0)
