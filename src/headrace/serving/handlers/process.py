"""One child process: its start, its calls, their cancellation, and its end with all its descendants."""

import asyncio
import os
import shutil
import signal
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final

from headrace.core.processes import is_session_running, kill_session, reap, spawn_connected
from headrace.core.telemetry import get_logger
from headrace.serving.handlers.channel import Channel, OutputReader
from headrace.serving.handlers.code_metrics import CodeMetrics
from headrace.serving.handlers.errors import Refusal, WholeResponse, refusal
from headrace.serving.handlers.exchange import ChildCall, MemoryFile, PendingResponse, StreamHead, call_frame
from headrace.serving.handlers.isolation import CHILD_DESCRIPTOR, child_command
from headrace.serving.handlers.spec import HandlerSpec
from headrace_handler.calls import load_header
from headrace_handler.frames import WINDOW_CHUNKS, BadFrame, Buffer, Frame, Kind, check_memory_file, encode
from headrace_handler.sandbox import PARTS

CANCEL_GRACE_S: Final = 2.0
"""Seconds for user code to obey CANCEL or STOP before its session is killed."""

_EXIT_GRACE_S: Final = 0.5
_LOADING_INTERVAL_S: Final = 10.0
"""Seconds between two log lines while the code is being loaded."""

_MAX_UNTAKEN: Final = 4 * WINDOW_CHUNKS
"""A child waits for its clients far below this number of parts; hostile code would fill the server's memory."""
_OWN_SANDBOX: Final = os.environ.get(PARTS, "off")
"""The parts of this process's own sandbox, which its children share."""


class LoadRefused(Exception):
    """User code could not be loaded, as the child itself reports."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class ChildLost(Exception):
    """The child has ended, or was ended because it was too slow."""


class ChildProcess:
    """A child and its calls."""

    def __init__(self, spec: HandlerSpec, tail: deque[str], metrics: CodeMetrics) -> None:
        """
        Start the process; `tail` and `metrics` get what it prints.

        Raises:
            OSError: the interpreter cannot be started.
        """
        self._spec = spec
        self._tail = tail
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._log = get_logger().bind(model=spec.model_name)
        self._loaded: asyncio.Future[bool] = self._loop.create_future()
        """True: the code is asynchronous."""
        # A child that is stopped while it loads may still fail when nothing awaits its load.
        self._loaded.add_done_callback(lambda loaded: loaded.cancelled() or loaded.exception())
        self.exited: asyncio.Future[int | None] = self._loop.create_future()
        """The exit code; None if another part of this process has reaped it."""
        self.calls: dict[int, ChildCall] = {}
        self.num_answered = 0
        """Calls that ended; the first one proves that the code works."""
        self._start()

    def _start(self) -> None:
        sandbox = self._spec.sandbox
        self._scratch = None if sandbox is None else tempfile.mkdtemp(prefix="headrace-code-")
        if sandbox is not None and self._scratch is not None:
            sandbox = replace(sandbox, scratch=self._scratch)
        command, environment = child_command(self._spec, sandbox)
        with ExitStack() as undo, ExitStack() as given:
            if self._scratch is not None:
                undo.callback(os.rmdir, self._scratch)
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            given.callback(theirs.close)
            out_read, out_write = _pipe(undo, given)
            err_read, err_write = _pipe(undo, given)
            self.process = spawn_connected(
                command,
                environment,
                {1: out_write, 2: err_write, CHILD_DESCRIPTOR: theirs.fileno()},
            )
            undo.callback(kill_session, self.process)
            self._pidfd = os.pidfd_open(self.process.pid)
            undo.pop_all()
        self._outputs = [
            OutputReader(out_read, lambda line: self._on_line("stdout", line)),
            OutputReader(err_read, lambda line: self._on_line("stderr", line)),
        ]
        self._channel = Channel(ours, self._on_frame, self._on_channel_end)
        self._loop.add_reader(self._pidfd, self._on_exit)
        self._log.info("handler.started", pid=self.pid)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def num_running(self) -> int:
        return sum(len(call.responses) for call in self.calls.values())

    def runs(self, response: PendingResponse) -> bool:
        return any(response.item_id in call.responses for call in self.calls.values())

    @property
    def is_alive(self) -> bool:
        return not self.exited.done()

    async def load(self) -> bool:
        """
        Load the user's code; return whether it is asynchronous.

        Raises:
            LoadRefused: it cannot be loaded.
            ChildLost: the process ended or passed `load_timeout_s`.
        """
        header = load_header(self._spec.load)
        self._channel.send(encode(Kind.LOAD, header))
        timeout_s = self._spec.load_timeout_s
        await self._wait_for_load(timeout_s)
        if self._loaded.done() and not self._loaded.cancelled():
            return self._loaded.result()
        if self.exited.done():
            raise ChildLost(f"The process ended with {exit_text(self.exited.result())} while it loaded the code.")
        raise ChildLost(f"The code was not loaded within {timeout_s:g} s. {_MORE_TIME[self._spec.contract]}")

    async def _wait_for_load(self, timeout_s: float) -> None:
        """Wait until the code is loaded, the process exits or the timeout passes; log the wait."""
        outcomes: set[asyncio.Future[Any]] = {self._loaded, self.exited}
        passed_s = 0.0
        while passed_s < timeout_s:
            wait_s = min(_LOADING_INTERVAL_S, timeout_s - passed_s)
            done, _ = await asyncio.wait(outcomes, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            passed_s += wait_s
            self._log.info("handler.loading", pid=self.pid, passed_s=passed_s, timeout_s=timeout_s)

    def call(self, responses: Sequence[PendingResponse], on_done: Callable[[ChildCall], None]) -> ChildCall:
        """Start a call; `on_done` is called when the child finishes it, not if the child exits."""
        call = ChildCall(responses, on_done)
        self.calls[call.call_id] = call
        for response in responses:
            response.credit = partial(self._give_credit, call, response)
        header, payload, descriptors = call_frame(call)
        try:
            self._channel.send(encode(Kind.CALL, header, payload), descriptors)
        except OSError as error:  # too many open files
            self._log.error("handler.not_sent", pid=self.pid, reason=error.strerror)
            self._fail(call, Refusal.QUEUE_FULL)
            self._loop.call_soon(self._drop, call)  # not at once: the pool is choosing the children of other calls
        else:
            self._limit(call, self._spec.call_timeout_s)
        return call

    def _drop(self, call: ChildCall) -> None:
        """End a call that was not sent."""
        if call.call_id in self.calls:
            self._forget(call)
            call.on_done(call)

    def _give_credit(self, call: ChildCall, response: PendingResponse, chunks: int, num_bytes: int) -> None:
        self._channel.send(encode(Kind.CREDIT, {"id": response.item_id, "chunks": chunks, "bytes": num_bytes}))
        if call.call_id in self.calls and not call.is_late:
            self._limit(call, self._spec.chunk_timeout_s)  # it may have waited for this client until now

    def cancel(self, response: PendingResponse) -> None:
        self._channel.send(encode(Kind.CANCEL, {"id": response.item_id}))

    async def stop(self) -> None:
        """Ask the process to exit, then kill what is left of its session."""
        self._channel.send(encode(Kind.STOP, {}))
        await asyncio.wait({self.exited}, timeout=CANCEL_GRACE_S)
        await self.kill()

    async def kill(self) -> None:
        """Kill the process and its descendants, answer its calls, and release everything."""
        for _ in range(20):
            kill_session(self.process)  # also forks made since the last scan
            await asyncio.wait({self.exited}, timeout=0.5)
            if not is_session_running(self.process):
                break
        if not self.exited.done():  # in an uninterruptible wait of the kernel
            self._log.error("handler.unkillable", pid=self.pid)
            self._end(None)

    # The process.

    def _on_exit(self) -> None:
        self._channel.drain()
        kill_session(self.process)  # what it has forked
        self._end(reap(self.process))

    def _end(self, code: int | None) -> None:
        if self.exited.done():
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._channel.close()
        for output in self._outputs:
            output.close()
        if self._scratch is not None:  # full only where it stands for /tmp
            self._loop.run_in_executor(None, partial(shutil.rmtree, self._scratch, ignore_errors=True))
        for call in list(self.calls.values()):
            self._forget(call)
            self._fail(call, Refusal.LOST, exit_code=code)
        if not self._loaded.done():
            self._loaded.cancel()
        self.exited.set_result(code)

    def _on_channel_end(self, reason: str) -> None:
        """Give an exiting process time to exit with its own code; kill one that keeps running."""

        def kill() -> None:
            if self.is_alive:
                self._log.warning("handler.unreachable", pid=self.pid, reason=reason)
                kill_session(self.process)

        self._loop.call_later(_EXIT_GRACE_S, kill)

    def _on_line(self, stream: str, line: str) -> None:
        self._tail.append(line)
        self._metrics.observe(line)
        self._log.info("handler.output", pid=self.pid, stream=stream, line=line)

    # Frames.

    def _on_frame(self, frame: Frame) -> None:
        header, files = frame.header, [MemoryFile(each, 0) for each in frame.descriptors]  # closed if unused
        if frame.kind == Kind.READY and not self._loaded.done():
            self._log.info("handler.isolated", pid=self.pid, sandbox=header.get("sandbox") or _OWN_SANDBOX)
            self._loaded.set_result(bool(header["asynchronous"]))
        elif frame.kind == Kind.FAILED and not self._loaded.done():
            self._loaded.set_exception(LoadRefused(int(header["status"]), str(header["message"])))
        elif frame.kind == Kind.DONE:
            self._on_done(header["call"])
        else:
            self._on_response(frame, files)

    def _on_done(self, call_id: int) -> None:
        if call_id not in self.calls:
            raise BadFrame(f"the end of call {call_id}, which does not run")
        call = self.calls[call_id]
        self._forget(call)
        self._fail(call, Refusal.UNANSWERED)
        self.num_answered += 1
        call.on_done(call)

    def _on_response(self, frame: Frame, files: Sequence[MemoryFile]) -> None:
        header = frame.header
        content: Buffer | MemoryFile = frame.payload
        if files:
            content = files[0]
            content.num_bytes = int(header["length"])
            check_memory_file(content.descriptor, content.num_bytes)
        call = next((call for call in self.calls.values() if header["id"] in call.responses), None)
        response = None if call is None else call.responses[header["id"]]
        # The client has left, or the call is over: what the code still sends is dropped.
        if call is None or response is None or response.has_ended:
            if isinstance(content, MemoryFile):
                content.close()
            return
        headers = [(str(name), str(value)) for name, value in header.get("headers", ())]
        if frame.kind == Kind.RESPONSE:
            status, phrase = int(header["status"]), str(header["phrase"])
            response.put_whole(
                WholeResponse(status=status, phrase=phrase, headers=headers, body=frame.payload), content
            )
        elif frame.kind == Kind.HEAD:
            response.put_head(StreamHead(status=int(header["status"]), phrase=str(header["phrase"]), headers=headers))
        elif frame.kind == Kind.DATA:
            if response.num_untaken > _MAX_UNTAKEN:
                raise BadFrame(f"{response.num_untaken} parts that the client has not taken")
            call.is_streaming = True
            response.put_part(content)
            self._limit(call, self._spec.chunk_timeout_s)
        elif frame.kind == Kind.END:
            if isinstance(content, MemoryFile) or content:
                response.put_part(content)
            response.put_end()
        elif frame.kind == Kind.ABORT:
            response.fail(self._refusal(Refusal.UNANSWERED), str(header["message"]))
        else:
            raise BadFrame(f"kind {frame.kind}")

    # Limits of time.

    def _limit(self, call: ChildCall, timeout_s: float | None) -> None:
        if call.timer is not None:
            call.timer.cancel()
        call.timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._on_timeout, call)

    def _on_timeout(self, call: ChildCall) -> None:
        # A slow client is no fault of the code: its time does not count.
        if call.is_streaming and call.waits_for_client:
            self._limit(call, self._spec.chunk_timeout_s)
            return
        if call.is_late:
            self._log.error("handler.killed", pid=self.pid, reason=f"did not obey within {CANCEL_GRACE_S:g} s")
            kill_session(self.process)
            return
        # First ask the code to stop (CANCEL) and answer the clients; the second timeout kills it.
        call.is_late = True
        self._log.error("handler.late", pid=self.pid, running_s=round(time.monotonic() - call.started_s, 3))
        for response in call.responses.values():
            self.cancel(response)
        self._fail(call, Refusal.LATE)
        self._limit(call, CANCEL_GRACE_S)

    def _forget(self, call: ChildCall) -> None:
        del self.calls[call.call_id]
        if call.timer is not None:
            call.timer.cancel()

    def _fail(self, call: ChildCall, reason: Refusal, *, exit_code: int | None = None) -> None:
        pending = [response for response in call.responses.values() if not response.has_ended]
        if pending:
            answer = self._refusal(reason, exit_code=exit_code)
            for response in pending:
                response.fail(answer, _BROKEN[reason])

    def _refusal(self, reason: Refusal, *, exit_code: int | None = None) -> WholeResponse:
        return refusal(self._spec, reason, exit_code=exit_code)


_BROKEN: Final = {
    Refusal.LOST: "The process with the model's code has ended.",
    Refusal.QUEUE_FULL: "The server has too many open files.",
    Refusal.LATE: "The model's code has passed its time limit.",
    Refusal.UNANSWERED: "The model's code has returned before the end of the response.",
}

_MORE_TIME: Final = {
    "djl": "Raise option.model_loading_timeout if it needs longer.",
    "torchserve": "Raise startupTimeout in model-config.yaml if it needs longer.",
    "sagemaker": "Raise SAGEMAKER_STARTUP_TIMEOUT if it needs longer.",
}


def _pipe(undo: ExitStack, given: ExitStack) -> tuple[int, int]:
    """Return the ends of a new pipe: the first is closed by `undo`, the second, which a child gets, by `given`."""
    read, write = os.pipe2(os.O_CLOEXEC)
    undo.callback(os.close, read)
    given.callback(os.close, write)
    return read, write


def exit_text(code: int | None) -> str:
    if code is None:
        return "an unknown exit code"
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else "unknown"
    hint = ", which the kernel sends when memory runs out" if -code == signal.SIGKILL else ""
    return f"signal {-code} ({name}{hint})"
