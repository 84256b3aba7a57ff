"""
The child process: it loads user code behind a contract and runs the calls that the model server sends.

User code runs on the main thread, as signal handlers and some libraries need it. The process ends when the model server
ends, when user code ends it, and when a contract fails; the model server starts another one.
"""

import argparse
import asyncio
import faulthandler
import gc
import importlib
import logging
import os
import resource
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from headrace_handler.calls import RunningCall, load_of, running_call
from headrace_handler.connection import EXIT_NO_SERVER, Connection
from headrace_handler.container_folders import explain, provide
from headrace_handler.contract import AsyncContract, Cancelled, Contract, LoadFailed
from headrace_handler.frames import MAX_MESSAGE_CHARACTERS, Frame, Kind
from headrace_handler.privileges import give_up_privileges
from headrace_handler.sandbox import ARGUMENT, PARTS, Sandbox, confine

if TYPE_CHECKING:
    from headrace_handler.policy import Policy

EXIT_FAILED = 1
"""User code could not be loaded, or its contract has failed."""
_PR_SET_PDEATHSIG = 1
_CALLERS = (str(Path(__file__).parent), importlib.__file__, "<frozen importlib")
"""Files whose frames come before those of user code in a traceback."""


_ADVISED = (ModuleNotFoundError, PermissionError)


def main(sandbox: Sandbox | None = None) -> NoReturn:
    """Run a child in the sandbox that it has entered, then exit the process: threads of user code cannot keep it."""
    parser = argparse.ArgumentParser(prog="headrace_handler")
    parser.add_argument("--contract", required=True)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--folder", action="append", default=[], metavar="PATH=FOLDER")
    parser.add_argument("--private", action="append", default=[], type=Path)
    parser.add_argument(ARGUMENT.rstrip("="))
    options = parser.parse_args()
    folders = dict(text.split("=", 1) for text in options.folder)
    has_namespaces = sandbox is not None and bool(sandbox.namespaces)
    mounts = {Path(path): Path(folder) for path, folder in folders.items()}
    notice = provide(mounts, options.private, has_own_mounts=has_namespaces)
    rights = _without_privileges()
    parts = os.environ.pop(PARTS, "")  # of a sandbox that another program has entered for this one
    if not has_namespaces and not parts:  # the end of process 1 is the end of its namespace
        _end_with(options.parent)  # a change of namespaces or capabilities may reset it
    if sandbox is not None:
        confine(sandbox, options.private)
    _prepare_process(notice, rights)
    code = EXIT_FAILED
    try:
        Child(options.fd, options.contract, notice, sandbox, parts).run()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else EXIT_FAILED
        print(f"The user's code has called sys.exit({error.code!r}); the process ends.", file=sys.stderr, flush=True)
    except BaseException:  # noqa: BLE001 -- the process ends in any case
        traceback.print_exc()
    _exit(code)


class Child:
    """The loop of a child: load, then one call after the other, or many at once on an event loop."""

    def __init__(
        self, descriptor: int, contract_name: str, notice: str = "", sandbox: Sandbox | None = None, parts: str = ""
    ) -> None:
        """
        Prepare the child; `notice` says why code does not find the container's folders, or is empty.

        `parts` are those of a sandbox that this process was started in.
        """
        self._connection = Connection(descriptor, self._on_frame)
        self._contract_name = contract_name
        self._notice = notice
        self._sandbox = sandbox
        self._parts = parts
        self._load_frame: Frame | None = None
        self._inbox: deque[RunningCall | None] = deque()
        """Calls for the main thread; None ends it."""
        self._wake: Callable[[], None] = lambda: None
        """Makes an event loop take calls from the inbox; without a loop the main thread waits for them itself."""
        self._failure: BaseException | None = None
        self._calls: dict[int, RunningCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self) -> None:
        """Load the code and run calls until the model server stops the child."""
        self._connection.wait_for(lambda: self._load_frame is not None)
        assert self._load_frame is not None, "it was waited for"
        contract = self._load(self._load_frame)
        gc.collect()
        gc.freeze()  # a model's objects live as long as the process: the collector need not visit them in calls
        loop = getattr(contract, "loop", None)
        sandbox = self._parts if self._sandbox is None else self._sandbox.describe()
        self._connection.send([(Kind.READY, {"asynchronous": loop is not None, "sandbox": sandbox}, b"")])
        if loop is None:
            self._run_calls(contract)
        else:
            self._run_loop(cast("AsyncContract", contract), loop)

    def _load(self, frame: Frame) -> Contract:
        """Load the contract and user code; end the process if that fails."""
        load = load_of(frame)
        sys.path.append(str(Path(__file__).parent / "standins"))
        try:
            contract = self._make_contract()
            os.chdir(load.model_dir)
            contract.load(load)
        except BaseException as error:  # noqa: BLE001 -- reported to the model server, then the process ends
            failed = error if isinstance(error, LoadFailed) else LoadFailed(500, f"{type(error).__name__}: {error}")
            message = " ".join(filter(None, (failed.message + _advice(error), explain(error, self._notice))))
            _print_traceback(error)
            _flush()  # the model server ends this process as soon as it knows, and quotes what was printed
            self._connection.send(
                [(Kind.FAILED, {"status": failed.status, "message": message[:MAX_MESSAGE_CHARACTERS]}, b"")]
            )
            _exit(EXIT_FAILED)
        return contract

    def _make_contract(self) -> Contract:
        if self._sandbox is not None and self._sandbox.failure:
            raise LoadFailed(500, self._sandbox.failure)
        module = importlib.import_module(f"headrace_handler.contracts.{self._contract_name}")
        contract: Contract = module.make()
        return contract

    def _run_calls(self, contract: Contract) -> None:
        while True:
            self._connection.wait_for(lambda: bool(self._inbox))
            call = self._inbox.popleft()
            if call is None:
                return
            with suppress(Cancelled):
                contract.call(call.call)
            self._end(call)
            del call  # or its bodies would stay in memory until the next one

    def _run_loop(self, contract: AsyncContract, loop: asyncio.AbstractEventLoop) -> None:
        def take() -> None:
            while self._inbox:
                call = self._inbox.popleft()
                if call is None:
                    loop.stop()
                    return
                task = loop.create_task(self._run_call(contract, loop, call))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        def wake() -> None:
            with suppress(RuntimeError):  # user code has closed the loop: the main thread ends
                loop.call_soon_threadsafe(take)

        self._wake = wake
        wake()
        # The main thread runs the event loop, so that another one receives frames.
        receive = partial(self._connection.wait_for, lambda: False)
        threading.Thread(target=receive, name="headrace-frames", daemon=True).start()
        loop.run_forever()
        if self._failure is not None:
            raise self._failure

    async def _run_call(self, contract: AsyncContract, loop: asyncio.AbstractEventLoop, call: RunningCall) -> None:
        try:
            with suppress(Cancelled):
                await contract.call_async(call.call)
        except BaseException as error:  # noqa: BLE001 -- re-raised after the loop has stopped
            self._failure = error
            loop.stop()
        else:
            self._end(call)

    def _end(self, call: RunningCall) -> None:
        del self._calls[call.call_id]
        call.end_rest()
        self._connection.send([(Kind.DONE, {"call": call.call_id}, b"")])

    def _on_frame(self, frame: Frame) -> None:
        header = frame.header
        if frame.kind == Kind.CREDIT:
            for call in list(self._calls.values()):
                call.credit(header["id"], header["chunks"], header["bytes"])
        elif frame.kind == Kind.CANCEL:
            for call in list(self._calls.values()):
                call.cancel(header["id"])
        elif frame.kind == Kind.CALL:
            call = running_call(frame, self._connection)
            self._calls[call.call_id] = call
            self._inbox.append(call)
            self._wake()
        elif frame.kind == Kind.LOAD:
            self._load_frame = frame
        elif frame.kind == Kind.STOP:
            self._inbox.append(None)
            self._wake()


def _print_traceback(error: BaseException) -> None:
    """Print the traceback of user code, without the frames that called it and the exception that wraps it."""
    shown = error.__cause__ if isinstance(error, LoadFailed) and error.__cause__ is not None else error
    frame = shown.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_CALLERS):
        frame = frame.tb_next
    traceback.print_exception(type(shown), shown, frame or shown.__traceback__)


def _advice(error: BaseException) -> str:
    """Return advice about a missing package or right; an empty text for other failures."""
    reason: BaseException | None = error
    seen = set[int]()  # a cause may be the error itself: `raise error from error`
    while reason is not None and not isinstance(reason, _ADVISED) and id(reason) not in seen:
        seen.add(id(reason))
        reason = reason.__cause__
    if isinstance(reason, PermissionError) and os.geteuid() == 0:
        return ". The code runs as root without root's capabilities: let root own the file, or all users read it."
    if not isinstance(reason, ModuleNotFoundError) or not reason.name or not str(reason).startswith("No module named"):
        return ""
    package = reason.name.partition(".")[0]
    return (
        f". {package} is neither a file of the model nor an installed package: add it to requirements.txt, or "
        "install it beside Headrace."
    )


def _without_privileges() -> str:
    """Give up all capabilities; return the reason if that fails, else an empty text."""
    try:
        give_up_privileges()
    except (ImportError, OSError) as error:
        return f"The code keeps the capabilities of its user, because they cannot be given up: {error}."
    return ""


def _end_with(parent: int) -> None:
    """Make the kernel kill this process when the model server ends, if this Python has ctypes."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(EXIT_NO_SERVER)


class _Formatter(logging.Formatter):
    """A formatter that adds to an error why a folder of the container does not exist."""

    def __init__(self, notice: str) -> None:
        super().__init__("%(levelname)s %(message)s")
        self._notice = notice

    def formatException(self, ei: Any) -> str:  # noqa: N802 -- of the standard library
        return "\n".join(filter(None, (super().formatException(ei), explain(ei[1], self._notice))))


def _prepare_process(notice: str, rights: str) -> None:
    """Buffer output by line, log to it as the original servers do, and dump the stacks of a crash."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Formatter(notice))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    for text in filter(None, (notice, rights)):
        logging.getLogger(__name__).warning("%s", text)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _exit(code: int) -> NoReturn:
    _flush()
    os._exit(code)


def arguments_of(
    *,
    contract: str,
    descriptor: int,
    parent: int,
    container_folders: Mapping[Path, Path] | None = None,
    private_folders: Sequence[Path] = (),
    sandbox: "Policy | None" = None,
) -> list[str]:
    folders = [f"--folder={path}={folder}" for path, folder in (container_folders or {}).items()]
    folders += [f"--private={folder}" for folder in private_folders]
    folders += [] if sandbox is None else [ARGUMENT + sandbox.encoded()]
    return ["--contract", contract, "--fd", str(descriptor), "--parent", str(parent), *folders]
