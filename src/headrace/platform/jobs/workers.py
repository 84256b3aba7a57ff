"""The workers of a job: started by a record, waited for, and asked directly."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from headrace.platform.control.loops import store_access
from headrace.platform.control.model.endpoint import JOB_ENDPOINT, EndpointRecord, EndpointSpec
from headrace.platform.control.model.workload import State, failure_reason, visible_state
from headrace.platform.gateway.routing import replicas_of
from headrace.platform.gateway.service import InvocationService
from headrace.platform.jobs.loop import INTERNAL_ERROR, JobFailed
from headrace.platform.jobs.transform_run import BUSY_LIMIT_S
from headrace.platform.state.records import Conflict, Record
from headrace.platform.state.routes import Replica
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.errors import AwsError

REPLICA_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWorkers:
    """The workers with a name in the store, which is that of a `JOB_ENDPOINT`."""

    store: Store
    service: InvocationService
    name: str

    async def start(self, spec: EndpointSpec) -> None:
        """Create the record, unless an earlier process did; wait for the end of one that is being removed."""
        record = await asyncio.to_thread(self.store.get, JOB_ENDPOINT, self.name)
        if record is not None and record.deleting_s is not None:
            await self.remove()
            record = None
        if record is None:
            await asyncio.to_thread(lambda: self.store.create(JOB_ENDPOINT, self.name, spec=spec))

    async def until_serving(self) -> EndpointRecord:
        with store_access.changes(self.store) as changed:
            while True:
                changed.clear()
                record = await asyncio.to_thread(self.store.get, JOB_ENDPOINT, self.name)
                if not isinstance(record, Record):
                    raise JobFailed(INTERNAL_ERROR)
                state = visible_state(record)
                if state is State.FAILED:
                    raise JobFailed(f"AlgorithmError: {failure_reason(record)}")
                if state is State.IN_SERVICE:
                    return record
                await changed.wait()

    async def replica(self) -> Replica:
        """Return a worker; wait for it, as workers start again with the platform."""
        deadline_s = time.monotonic() + BUSY_LIMIT_S
        while time.monotonic() < deadline_s:
            with suppress(AwsError):
                route = await self.service.forwarder.route(self.name)
                for variant in route.variants:
                    for replica in replicas_of(variant):
                        return replica
            await asyncio.sleep(REPLICA_POLL_S)
        raise JobFailed("AlgorithmError: the job has no worker that answers.")

    async def remove(self) -> None:
        """Remove the workers, and wait until they are gone: the next ones need their cores."""
        with store_access.changes(self.store) as changed:
            while True:
                changed.clear()
                record = await asyncio.to_thread(self.store.get, JOB_ENDPOINT, self.name)
                if record is None:
                    return
                if record.deleting_s is None:
                    with suppress(Conflict):
                        await store_access.mark_deleting(self.store, record)
                await changed.wait()
