"""The process of a rank but the first: `python -m headrace.inference.runner.torch.rank_process SOCKET`."""

import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection

import torch

from headrace.core.errors import HeadraceError
from headrace.inference.models.loading import load_model
from headrace.inference.runner.step import StepInput
from headrace.inference.runner.torch.parallel import Collectives, Shard
from headrace.inference.runner.torch.rank import Rank, device_of
from headrace.inference.runner.torch.ranks import Failed, LoadAdapter, RankTask, Ready


def main(socket_number: int) -> None:
    """Load this rank's part of the model and execute the steps that arrive, until the server closes the socket."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal signals all processes; the server ends this one
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(socket_number)
    task = connection.recv()
    try:
        _serve(task, connection)
    except Exception as exc:  # noqa: BLE001 - an edge: the server reports the error
        error = exc if isinstance(exc, HeadraceError) else None
        connection.send(Failed(error, f"rank {task.rank} failed: {type(exc).__name__}: {exc}"))
        os._exit(1)  # a failed collective may hang the interpreter's end


def _serve(task: RankTask, connection: Connection) -> None:
    if task.threads is not None:
        torch.set_num_threads(task.threads)
    shard = Shard(task.rank, task.plan.num_ranks)
    model = load_model(str(task.model), rope=task.rope)
    device = device_of(task.plan, shard)
    messages: queue.SimpleQueue[object] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, messages), daemon=True).start()
    connection.send(Ready())
    collectives = Collectives.join(
        shard, device=device, meeting_point=task.meeting_point, is_invariant=task.plan.is_batch_invariant
    )
    rank = Rank.load(model.spec, model.weights, task.plan, collectives)
    while (message := messages.get()) is not None:
        if isinstance(message, LoadAdapter):
            rank.load_adapter(message.slot, message.adapter)
        else:
            assert isinstance(message, StepInput)
            rank.forward(message)
    rank.close()


def _receive(connection: Connection, messages: "queue.SimpleQueue[object]") -> None:
    """Queue what arrives; end the process when the server has died, whatever it is computing."""
    try:
        while (message := connection.recv()) is not None:
            messages.put(message)
        messages.put(None)
    except (EOFError, OSError):
        os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
