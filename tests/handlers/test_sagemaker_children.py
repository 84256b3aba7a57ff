"""`inference.py` in a child process, as a model server calls it."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from headrace.handlers.errors import LoadError, WholeResponse
from headrace.handlers.exchange import HandlerRequest, PendingResponse, request_part
from headrace.handlers.found import find_model
from headrace.handlers.pool import HandlerPool
from headrace.handlers.sagemaker import make_spec
from headrace.handlers.spec import HandlerSpec
from headrace_handler.contract import Headers

from .support import answer, pool_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = ("Content-Type", "application/json")
PROGRAM = """
import json, logging, os, sys
from sagemaker_inference import encoder, errors

def model_fn(model_dir):
    logging.getLogger().info("loading %s", model_dir)
    return {"pid": os.getpid()}

def input_fn(data, content_type):
    return json.loads(data)

def predict_fn(data, model):
    if data == "exit":
        sys.exit(3)
    if data == "fail":
        raise errors.BaseInferenceToolkitError(422, "not these", "Unprocessable")
    return data

def output_fn(prediction, accept):
    if isinstance(prediction, int):
        return (f"{number} " for number in range(prediction))
    return encoder.encode(prediction, accept), accept
"""


def spec_of(folder: Path, program: str, **variables: str) -> HandlerSpec:
    (folder / "code").mkdir()
    (folder / "code" / "inference.py").write_text(program)
    environment = {"PATH": os.environ["PATH"]} | variables
    return replace(make_spec(find_model(folder, model_name="m", env=environment)), environment=environment)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HandlerPool]:
    async with pool_of(spec_of(tmp_path_factory.mktemp("model"), PROGRAM)) as pool:
        yield pool


async def invoke(pool: HandlerPool, body: bytes, headers: Headers = ()) -> PendingResponse:
    return pool.submit(HandlerRequest(request_id="r", headers=[JSON, *headers], parts=[await request_part(body)]))


async def test_the_functions_answer_with_status_type_and_body(pool: HandlerPool) -> None:
    response = await invoke(pool, b"[1, 2]", [("Accept", "application/json")])

    head = await response.head()

    assert isinstance(head, WholeResponse)
    assert (head.status, list(head.headers), bytes(head.body)) == (200, [JSON], b"[1, 2]")
    response.close()


async def test_a_generator_is_sent_in_its_parts(pool: HandlerPool) -> None:
    response = await invoke(pool, b"3")
    await response.head()

    parts = [bytes(part) for part in [await response.part() for _ in range(3)] if part is not None]

    assert parts == [b"0 ", b"1 ", b"2 "]
    response.close()


async def test_errors_of_the_code_are_its_own_and_the_process_goes_on(pool: HandlerPool) -> None:
    status, body = await answer(await invoke(pool, b'"fail"'))

    assert status == 422
    assert body.startswith(b"not these\nTraceback (most recent call last):\n")
    assert await answer(await invoke(pool, b"[3]")) == (200, b"[3]")


async def test_code_that_ends_its_process_costs_its_own_request(pool: HandlerPool) -> None:
    lost, queued = await asyncio.gather(invoke(pool, b'"exit"'), invoke(pool, b"[4]"))

    assert (await answer(lost))[0] == 500
    assert await answer(queued) == (200, b"[4]")


async def test_a_program_that_cannot_be_loaded_is_told_with_the_cause(tmp_path: Path) -> None:
    pool = HandlerPool(spec_of(tmp_path, "import nothing_of_the_kind"))

    with pytest.raises(LoadError, match="ModuleNotFoundError: No module named 'nothing_of_the_kind'"):
        await pool.start()

    await pool.close(deadline_s=0)
