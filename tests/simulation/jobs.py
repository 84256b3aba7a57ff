"""Batch transform jobs: the clients that create and stop them, and the rules of their outputs."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from tests.simulation.clients import Clients, Refused
from tests.simulation.scenario import Operation

_BUCKET: Final = "s3://jobs"
_STORED_S: Final = 60
_ENDED: Final = frozenset({"Completed", "Failed", "Stopped"})


@dataclass
class TransformJobs:
    """The jobs of one simulation: each line of an input has one line of the output, in its order."""

    kinds: ClassVar = ("job",)
    clients: Clients
    findings: list[str] = field(default_factory=list)
    _inputs: dict[str, list[list[str]]] = field(default_factory=dict)
    """Job → the ids in the lines of each of its objects."""
    _bad: set[str] = field(default_factory=set)
    """Jobs with a record that no worker can answer."""
    _stopped: set[str] = field(default_factory=set)
    _ends: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Job → how it has ended, and why."""

    async def prepare(self) -> None:
        pass  # the model of the endpoints is enough

    async def run(self, operation: Operation) -> None:
        """
        Create a job with one or two objects, to which another one comes late.

        One of six is stopped, sometimes in the moment of its end; one of eight has a record that no worker can answer.
        """
        name = f"job-{len(self._inputs)}"
        inputs = self._inputs[name] = [
            [f"{name}-{index}-{number}" for number in range(2 + operation.target % 7)]
            for index in range(1 + operation.amount % 2)
        ]
        contents, is_bad = self.clients.world.objects.contents, operation.amount % 8 == 1
        if is_bad:
            self._bad.add(name)
        for index, ids in enumerate(inputs):
            content = "".join(json.dumps({"id": id_, "is_bad": is_bad}) + "\n" for id_ in ids)
            contents[f"{_BUCKET}/in/{name}/{index}"] = content.encode()
        await self.clients.call("CreateTransformJob", done="already", **_members(name))
        late = f"{_BUCKET}/in/{name}/+", b'{"id": "late"}\n'  # its name comes before the others
        self.clients.world.loop.call_later(operation.target % 11, contents.__setitem__, *late)
        if operation.amount % 6 == 0:
            await asyncio.sleep(operation.target % 8)
            if operation.target % 2:
                await self._until_stored(f"{_BUCKET}/out/{name}/{len(inputs) - 1}.out")
            self._stopped.add(name)
            with suppress(Refused):  # it has ended
                await self.clients.call("StopTransformJob", TransformJobName=name)

    async def _until_stored(self, uri: str) -> None:
        """Wait until an object has been written, for a while."""
        for _ in range(_STORED_S * 10):
            if uri in self.clients.world.objects.contents:
                return
            await asyncio.sleep(0.1)

    async def describe(self) -> list[str]:
        for name in self._inputs.keys() - self._ends.keys():
            found = await self.clients.call("DescribeTransformJob", TransformJobName=name)
            if found["TransformJobStatus"] in _ENDED:
                self._ends[name] = found["TransformJobStatus"], found.get("FailureReason", "")
        return [f"Job {name} has not ended." for name in sorted(self._inputs.keys() - self._ends.keys())]

    async def check(self) -> list[str]:
        return [finding for name in self._ends for finding in self._wrong(name)]

    def _wrong(self, name: str) -> Iterator[str]:
        """Yield what is wrong with the end of a job, and with its outputs."""
        status, reason = self._ends[name]
        if status == "Stopped" and name not in self._stopped:
            yield f"Job {name} was stopped by no client."
        if name in self._bad:
            if status == "Completed":
                yield f"Job {name} is {status}; no worker can answer its records."
            return
        if status == "Failed" and not (reason and self.clients.world.scenario.loses_workers()):
            yield f"Job {name} has failed without a fault of workers: {reason}"
        for index, ids in enumerate(self._inputs[name]):
            output = self.clients.world.objects.contents.get(f"{_BUCKET}/out/{name}/{index}.out")
            if output is None and status != "Completed":
                continue
            found = [json.loads(line or b'{"id": ""}')["id"] for line in (output or b"").splitlines()]
            if found != ids:
                yield f"Object {index} of {name} has the records {found}; expected {ids}."


def _members(name: str) -> dict[str, Any]:
    return {
        "TransformJobName": name,
        "ModelName": "m",
        "BatchStrategy": "SingleRecord",
        "MaxConcurrentTransforms": 2,
        "TransformInput": {
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"{_BUCKET}/in/{name}/"}},
            "ContentType": "application/json",
            "SplitType": "Line",
        },
        "TransformOutput": {"S3OutputPath": f"{_BUCKET}/out/{name}", "AssembleWith": "Line"},
        "TransformResources": {"InstanceType": "ml.m5.large", "InstanceCount": 1},
    }
