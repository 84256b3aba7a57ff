"""A control plane on a real port, with fake workers."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import uvicorn
from botocore.config import Config

from headrace.platform.cloudformation.loop import StackLoop
from headrace.platform.cluster.platform_logs import EndedLog
from headrace.platform.control.app import ControlApp
from headrace.platform.control.loops.endpoint_pass import OnState
from headrace.platform.control.loops.reconciler import Reconciler
from headrace.platform.control.loops.timing import Clocks
from headrace.platform.control.planning.config import ReconcilerConfig
from headrace.platform.control.planning.worker_build import WorkerDefaults
from headrace.platform.host.operations import OPERATIONS
from headrace.platform.state.store import Store, open_store
from headrace.serving.http.tls import bind, url_of
from headrace.serving.wire.aws.scope import AwsScope
from headrace.testing.fake_launcher import FakeLauncher, FakeMachine
from tests.prompt_server import PromptServer
from tests.waiting import WAIT_S, pauses

AWS_SCOPE = AwsScope(account="123456789012", region="us-east-1")
ROLE = "arn:aws:iam::123456789012:role/HeadraceRole"
IMAGE = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/"
    "huggingface-pytorch-tgi-inference:2.0.1-tgi1.0.3-gpu-py39-cu118-ubuntu20.04"
)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a worker."""

    timestamp_ms: int
    message: str
    position: int

    @property
    def next_position(self) -> int:
        return self.position + 1


@dataclass
class ListedLogs:
    """`PlatformLogs` on lists; a position is an index."""

    lines: dict[str, list[Line]] = field(default_factory=dict)
    """Lines by worker; those of `""` belong to all workers."""
    kept: dict[str, EndedLog] = field(default_factory=dict)
    """Retained logs by worker, in the order in which the workers ended."""
    fault: OSError | None = None
    """The error that `keep` raises."""

    def write(self, *messages: str, worker: str = "", begin_ms: int = 1_700_000_000_000) -> None:
        found = self.lines.setdefault(worker, [])
        for message in messages:
            found.append(Line(timestamp_ms=begin_ms + len(found), message=message, position=len(found)))

    def read(
        self,
        worker: str,
        *,
        start_ms: int | None = None,
        end_ms: int | None = None,
        position: int | None = None,
        limit: int = 1000,
        is_backward: bool = False,
    ) -> Sequence[Line]:
        lines = self.lines.get(worker, self.lines.get("", []))
        within = [
            line
            for line in lines
            if (start_ms is None or line.timestamp_ms >= start_ms) and (end_ms is None or line.timestamp_ms < end_ms)
        ]
        if is_backward:
            return [line for line in within if position is None or line.position < position][-limit:]
        return [line for line in within if position is None or line.position >= position][:limit]

    def size_bytes(self, worker: str) -> int:
        return sum(len(line.message) for line in self.lines.get(worker, self.lines.get("", [])))

    def ended(self) -> Sequence[EndedLog]:
        return list(self.kept.values())

    def keep(self, worker: str, *, log_group: str, log_stream: str, created_s: float) -> None:
        if self.fault is not None:
            raise self.fault
        lines = self.read(worker)
        if lines and worker not in self.kept:
            self.kept[worker] = EndedLog(
                worker=worker,
                log_group=log_group,
                log_stream=log_stream,
                created_ms=int(created_s * 1000),
                ended_ms=lines[-1].timestamp_ms,
                first_ms=lines[0].timestamp_ms,
                last_ms=lines[-1].timestamp_ms,
            )

    folders = (Path("workers"), Path("ended"))

    def open(self, log_group: str, log_stream: str) -> bool:
        return True

    def put(self, worker: str, events: Iterable[tuple[int, str]]) -> None:
        raise AssertionError(worker, events)

    def drop(self, workers: Sequence[str]) -> None:
        for worker in workers:
            del self.kept[worker]


@dataclass(frozen=True, kw_only=True)
class Share:
    """The share of this machine that an instance type gets."""

    threads: int | None = 1
    memory_bytes: int | None = None
    notices: tuple[str, ...] = ()
    num_gpus: int = 0


def share_of(name: str) -> Share:
    return Share(notices=(f"{name} has a GPU, which is not here.",) if ".g" in name else ())


def reconciler_of(
    store: Store,
    machine: FakeMachine,
    *,
    logs: ListedLogs | None = None,
    clock: Callable[[], float] = time.time,
    config: ReconcilerConfig | None = None,
    launcher: FakeLauncher | None = None,
    monotonic: Callable[[], float] | None = None,
    on_state: OnState = lambda *_: None,
) -> Reconciler:
    """A reconciler of played workers."""
    return Reconciler(
        store=store,
        launcher=launcher or FakeLauncher(machine),
        logs=logs or ListedLogs(),
        aws_scope=AWS_SCOPE,
        defaults=WorkerDefaults(share_of=share_of),
        config=config or ReconcilerConfig(drain_s=0.05),
        clocks=Clocks(clock, monotonic or clock),
        on_state=on_state,
    )


@dataclass(kw_only=True)
class Platform:
    """A control plane that runs."""

    url: str
    store: Store
    machine: FakeMachine
    logs: ListedLogs
    clients: list[Any] = field(default_factory=list)

    def client(self, service: str) -> Any:
        """A boto3 client, without retries."""
        client = boto3.client(
            service,
            endpoint_url=self.url,
            region_name=AWS_SCOPE.region,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(retries={"total_max_attempts": 1}, proxies={}, read_timeout=WAIT_S),
        )
        self.clients.append(client)
        return client

    def wait_for(self, client: Any, name: str, *states: str) -> dict[str, Any]:
        """Until the endpoint is in one of the states."""
        deadline_s = time.monotonic() + WAIT_S
        for pause_s in pauses():
            found: dict[str, Any] = client.describe_endpoint(EndpointName=name)
            if found["EndpointStatus"] in states:
                return found
            if time.monotonic() > deadline_s:
                break
            time.sleep(pause_s)
        raise AssertionError(f"{name} is {found['EndpointStatus']}, wanted {states}")


@contextmanager
def running_platform(
    *,
    is_strict: bool = False,
    reconciles: bool = True,
    has_stacks: bool = False,
    also: Callable[[Store, FakeMachine], Coroutine[Any, Any, None]] | None = None,
    logs: Any = None,
    on_state: OnState = lambda *_: None,
) -> Iterator[Platform]:
    """Serve until the end of the block; `also` runs on the same loop."""
    store, machine = open_store("sqlite://"), FakeMachine(clock=time.time)
    logs = ListedLogs() if logs is None else logs
    app = ControlApp(store, OPERATIONS, aws_scope=AWS_SCOPE, logs=logs, own_images={}, is_strict=is_strict)
    listener = bind("127.0.0.1", 0)
    server = PromptServer(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
    reconciler = reconciler_of(store, machine, logs=logs, on_state=on_state)

    async def serve() -> None:
        loops = [*([reconciler.run()] if reconciles else []), *([also(store, machine)] if also is not None else [])]
        if has_stacks:
            loops.append(StackLoop(store=store, call=app.call, aws_scope=AWS_SCOPE).run())
        tasks = [asyncio.create_task(loop) for loop in loops]
        await server.serve(sockets=[listener])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    platform = Platform(url=url_of(listener), store=store, machine=machine, logs=logs)
    try:
        yield platform
    finally:
        for client in platform.clients:
            client.close()
        server.stop()
        thread.join(WAIT_S)
        listener.close()
        store.close()
