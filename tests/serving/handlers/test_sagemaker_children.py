"""`inference.py` in a child process, as a model server calls it."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from headrace.serving.handlers.assembly import container_folders
from headrace.serving.handlers.errors import LoadError, WholeResponse
from headrace.serving.handlers.exchange import HandlerRequest, PendingResponse, request_part
from headrace.serving.handlers.found import find_model
from headrace.serving.handlers.pool import HandlerPool
from headrace.serving.handlers.sagemaker import make_spec
from headrace.serving.handlers.spec import HandlerSpec
from headrace_handler.contract import Headers

from .support import answer, pool_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOURCE = Path(__file__).parents[3] / "src"
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


def spec_of(folder: Path, program: str, *, channels: Mapping[str, Path] = {}, **variables: str) -> HandlerSpec:
    (folder / "code").mkdir()
    (folder / "code" / "inference.py").write_text(program)
    environment = {"PATH": os.environ["PATH"]} | variables
    found = replace(find_model(folder, model_name="m", env=environment), channels=channels)
    return replace(make_spec(found), environment=environment, container_folders=container_folders(found))


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

    with pytest.raises(LoadError) as failed:
        await pool.start()

    assert failed.value.message.startswith(
        "ModuleNotFoundError: No module named 'nothing_of_the_kind'. nothing_of_the_kind is neither a file of the "
        "model nor an installed package: add it to requirements.txt, or install it beside Headrace.\n"
    )
    assert list(pool.tail) == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path}/code/inference.py", line 1, in <module>',
        "    import nothing_of_the_kind",
        "ModuleNotFoundError: No module named 'nothing_of_the_kind'",
    ]
    await pool.close(deadline_s=0)


async def test_a_cause_of_several_lines_is_told_in_one(tmp_path: Path) -> None:
    pool = HandlerPool(spec_of(tmp_path, "def predict_fn(data, model): return data"))
    with pytest.raises(
        LoadError, match=r"\ANotImplementedError: Please provide a model_fn implementation\. See .*\nThe last"
    ):
        await pool.start()


PLACES = """
import ctypes, json
from pathlib import Path

NAME = Path("/opt/ml/model/name.txt").read_text()
CHANNEL = Path("/opt/ml/additional-model-data-sources/words/name.txt").read_text()

def model_fn(model_dir):
    return Path("/opt/ml/code/inference.py").stat().st_size

def input_fn(data, content_type):
    return data

def predict_fn(data, model):
    signal = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(signal))  # PR_GET_PDEATHSIG
    return [NAME, CHANNEL, model, len(data), signal.value]

def output_fn(prediction, accept):
    return json.dumps(prediction)
"""


def python_with_rights(place: Path, *setpriv: str) -> Path:
    """Return a program that runs this Python with other rights than root's."""
    program = shutil.which("setpriv")
    if os.geteuid() != 0 or program is None:
        pytest.skip("only root can run a program with other rights")
    wrapper = place / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {program} {" ".join(setpriv)} {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def reason_against(python: Path) -> str:
    """Return why an interpreter cannot be run, or cannot make a namespace; empty if it can."""
    check = "import sys; sys.path.insert(0, sys.argv[1]); from headrace_handler.container_folders import provide, MODEL"
    command = [python, "-c", f"{check}; from pathlib import Path; print(provide({{MODEL: Path('/')}}))", str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() + done.stderr.strip()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can read, which pytest's are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize(
    "rights", [(), ("--reuid=65534", "--regid=65534", "--clear-groups")], ids=["own rights", "no rights"]
)
async def test_models_side_by_side_find_their_own_files_at_the_containers_paths(
    place: Path, rights: tuple[str, ...]
) -> None:
    specs = []
    for name in ("first", "second"):
        (folder := place / name).mkdir()
        (channel := place / f"{name} channel").mkdir()
        specs.append(spec_of(folder, PLACES, channels={"words": channel}))
        for holder in (folder, channel):
            (holder / "name.txt").write_text(holder.name)
    if rights:
        python = python_with_rights(place, *rights)
        specs = [replace(spec, python=python) for spec in specs]
    if reason := reason_against(specs[0].python):
        pytest.skip(reason)

    async with pool_of(specs[0]) as first, pool_of(specs[1]) as second:
        large = bytes(2 << 20)  # travels in a memory file
        answers = [await answer(await invoke(pool, large)) for pool in (first, second)]

    size = len(PLACES.encode())
    assert [json.loads(body) for _, body in answers] == [
        [name, f"{name} channel", size, len(large), signal.SIGKILL] for name in ("first", "second")
    ]


async def test_code_that_misses_the_containers_paths_is_told_why_and_what_to_do(place: Path) -> None:
    spec = replace(spec_of(place, PLACES), python=python_with_rights(place, "--bounding-set=-all"))
    pool = HandlerPool(spec)

    with pytest.raises(LoadError, match=r"name\.txt.*Give the container of this server the capability SYS_ADMIN"):
        await pool.start()

    await pool.close(deadline_s=0)
