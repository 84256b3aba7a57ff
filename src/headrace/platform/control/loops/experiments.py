"""
The loop of inference experiments: it deploys an experiment's revisions of its endpoint when they are due.

Level-triggered, like the reconciler: each step is recorded before the next one, and a request that was made of the
endpoint before the platform was killed is recognised, so that an experiment goes on where it was.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from headrace.core.telemetry import get_logger
from headrace.platform.control.loops import store_access
from headrace.platform.control.model.definitions import ENDPOINT_CONFIG, MODEL, DefinitionSpec
from headrace.platform.control.model.endpoint import (
    ENDPOINT,
    EndpointRecord,
    EndpointRevision,
    EndpointSpec,
    check_num_workers,
    with_capacities,
)
from headrace.platform.control.model.experiment import (
    ENDED,
    INFERENCE_EXPERIMENT,
    ExperimentRecord,
    config_prefix,
    is_same_but_capacities,
    wanted_revision,
)
from headrace.platform.control.model.names import arn_of
from headrace.platform.control.model.workload import (
    State,
    failure_reason,
    is_observed,
    is_updatable,
    serving_revision,
    visible_state,
)
from headrace.platform.state.records import AlreadyExists, Conflict, Json, Record
from headrace.platform.state.selection import Entry, Selection
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.scope import AwsScope

_BURST_S: Final = 0.05
"""Writes within this time are handled by one pass."""
_LONGEST_WAIT_S: Final = 60.0
"""Wait for a time of a schedule: the clock may be set."""
_MAX_REASON_CHARACTERS: Final = 1024


@dataclass(slots=True, kw_only=True)
class Experiments:
    store: Store
    aws_scope: AwsScope
    clock: Callable[[], float] = time.time
    _ended: set[Entry] = field(default_factory=set)
    """Experiments that have ended, and are not read again."""

    async def run(self) -> None:
        """Drive the experiments until cancelled; without any that has not ended, only writes wake it."""
        with store_access.changes(self.store) as changed:
            while True:
                changed.clear()
                wait_s: float | None = 1.0
                try:
                    wait_s = await asyncio.to_thread(self.pass_once)
                except Exception:  # noqa: BLE001 -- an edge: logged, and tried again
                    get_logger().exception("experiments.pass_failed")
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await changed.wait()
                await asyncio.sleep(_BURST_S)

    def pass_once(self) -> float | None:
        """Take each experiment's next step; return the seconds until one is due by its schedule, None: none is."""
        entries = set(self.store.entries(INFERENCE_EXPERIMENT))
        self._ended &= entries
        times_s: list[float] = []
        for entry in entries - self._ended:
            record = self.store.get(INFERENCE_EXPERIMENT, entry.name)
            if not isinstance(record, Record):
                continue
            if record.status.state in ENDED:
                self._ended.add(entry)
                continue
            schedule = record.spec.members["Schedule"]
            times_s += [schedule["StartTime"], schedule["EndTime"]]
            with suppress(Conflict):  # the other write ends the wait for the next pass
                self._step(record)
        due_s = [at_s - self.clock() for at_s in times_s if at_s > self.clock()]
        return min([*due_s, _LONGEST_WAIT_S]) if times_s else None

    def _step(self, record: ExperimentRecord) -> None:
        endpoint = self.store.get(ENDPOINT, record.spec.members["EndpointName"])
        if not isinstance(endpoint, Record) or endpoint.uid != record.spec.endpoint_uid or endpoint.deleting_s:
            self._end(record, None, "The endpoint was deleted.")
        elif record.status.state in ("Creating", "Created"):
            self._begin(record, endpoint)
        elif record.status.state == "Running":
            self._watch(record, endpoint)
        elif record.status.generation is None:
            self._request(record, endpoint)
        elif is_observed(endpoint) and is_updatable(endpoint):
            self._settle(record, endpoint)

    def _begin(self, record: ExperimentRecord, endpoint: EndpointRecord) -> None:
        if record.spec.stop is not None:
            self._end(record, endpoint, record.spec.stop.reason)
        elif self.clock() < record.spec.members["Schedule"]["StartTime"]:
            self._write(record, state="Created")
        elif visible_state(endpoint) is State.FAILED:
            self._end(record, endpoint, "The endpoint has failed.")
        elif is_updatable(endpoint):
            self._write(record, state="Starting", original=serving_revision(endpoint))

    def _watch(self, record: ExperimentRecord, endpoint: EndpointRecord) -> None:
        """Look for what ends or changes a running experiment."""
        deployed, has_changes = self._wanted(record), record.spec.changes != record.status.changes
        is_ours = isinstance(deployed, str) or is_same_but_capacities(endpoint.spec.revision.config, deployed.config)
        if not (is_ours or has_changes):
            self._end(record, endpoint, "The endpoint was updated outside of the experiment.")
        elif record.spec.stop is not None or self.clock() >= record.spec.members["Schedule"]["EndTime"]:
            reason = "" if record.spec.stop is None else record.spec.stop.reason
            self._write(record, state="Stopping", generation=None, reason=reason)
        elif has_changes:
            self._write(record, state="Updating", generation=None, changes=record.spec.changes)

    def _request(self, record: ExperimentRecord, endpoint: EndpointRecord) -> None:
        """Request the revision that the state asks for, unless it has been requested already."""
        wanted, asked = self._wanted(record), endpoint.spec.revision
        if isinstance(wanted, str):
            self._fail(record, endpoint, wanted)
        elif is_same_but_capacities(asked.config, wanted.config) and asked.desired == wanted.desired:
            self._write(record, generation=endpoint.spec.generation)
        elif is_updatable(endpoint):
            try:
                spec = self._endpoint_spec(endpoint, wanted)
            except AwsError as error:
                self._fail(record, endpoint, error.message)
                return
            config = spec.revision.config
            if spec.revision.config_name.startswith(config_prefix(record)):
                with suppress(AlreadyExists):
                    self.store.create(ENDPOINT_CONFIG, spec.revision.config_name, spec=DefinitionSpec(members=config))
            self.store.update(endpoint, spec=spec)
            self._write(record, generation=spec.generation)

    def _endpoint_spec(self, endpoint: EndpointRecord, wanted: EndpointRevision) -> EndpointSpec:
        """Return the endpoint's spec with another revision, or with other capacities if only those differ."""
        if is_same_but_capacities(serving_revision(endpoint).config, wanted.config):
            return with_capacities(endpoint, wanted.desired, arn=arn_of(self.aws_scope, ENDPOINT, endpoint.name))
        check_num_workers(wanted.desired)
        generation = endpoint.spec.generation + 1
        return EndpointSpec(generation=generation, revision=replace(wanted, number=generation, deployment={}))

    def _settle(self, record: ExperimentRecord, endpoint: EndpointRecord) -> None:
        """Go on when the endpoint has deployed what was requested, or has failed to."""
        wanted, reason = self._wanted(record), failure_reason(endpoint)
        is_served = isinstance(wanted, EndpointRevision) and is_same_but_capacities(
            serving_revision(endpoint).config, wanted.config
        )
        if not is_served or reason:
            self._fail(record, endpoint, reason or "The endpoint was updated outside of the experiment.")
        elif record.status.state == "Stopping":
            self._end(record, endpoint, record.status.reason)
        else:
            self._write(record, state="Running", generation=None)

    def _fail(self, record: ExperimentRecord, endpoint: EndpointRecord, reason: str) -> None:
        """End an experiment that cannot start or stop; one that cannot be updated is stopped."""
        if record.status.state == "Updating":
            self._write(record, state="Stopping", generation=None, reason=reason[:_MAX_REASON_CHARACTERS])
        else:
            self._end(record, endpoint, reason, is_failed=True)

    def _end(
        self, record: ExperimentRecord, endpoint: EndpointRecord | None, reason: str, *, is_failed: bool = False
    ) -> None:
        stop, state = record.spec.stop, "Cancelled"
        if record.status.state in ("Stopping", "Creating", "Created") and not is_failed and endpoint is not None:
            state = stop.state if stop is not None else "Cancelled" if reason else "Completed"
        used = "" if endpoint is None else endpoint.spec.revision.config_name
        for entry in list(self.store.entries(ENDPOINT_CONFIG, Selection(name_prefix=config_prefix(record)))):
            config = self.store.get(ENDPOINT_CONFIG, entry.name)
            if config is not None and entry.name != used:
                self.store.remove(config)
        self._write(record, state=state, ended_s=self.clock(), reason=reason[:_MAX_REASON_CHARACTERS])
        get_logger().info("experiment.ended", experiment=record.name, state=state, reason=reason.partition("\n")[0])

    def _wanted(self, record: ExperimentRecord) -> EndpointRevision | str:
        """Return the revision that the state asks for, or why there is none."""
        original, members = record.status.original, record.spec.members
        assert original is not None
        stop = record.spec.stop
        named = {variant["ModelName"] for variant in [*members["ModelVariants"], *(stop.variants if stop else ())]}
        models: dict[str, Json] = {}
        for name in named:
            model = self.store.find(MODEL, name)
            if isinstance(model, Record):
                models[name] = model.spec.deployed()
        if missing := named - models.keys() - original.models.keys():
            return f"Could not find model {', '.join(sorted(missing))}."
        return wanted_revision(record, original, models)

    def _write(self, record: ExperimentRecord, **changes: Any) -> None:
        status = replace(record.status, **changes)
        if status != record.status:
            self.store.update(record, status=status)
