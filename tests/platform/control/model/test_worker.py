"""The observed state of workers, and what it says about their variants."""

from dataclasses import replace

import msgspec

from headrace.platform.cluster.launcher import Observation, WorkerPhase
from headrace.platform.control.model.definitions import MODEL
from headrace.platform.control.model.worker import (
    WORKER,
    ReplicaSpec,
    ReplicaStatus,
    notices_of,
    observed_status,
    placements_of,
    restarts_of,
    worker_failure,
)
from headrace.platform.state.records import Record

ON_GPU = Observation(phase=WorkerPhase.READY, notices=("A notice.",), placement="w runs on GPU 0.")


def worker(status: ReplicaStatus, *, variant: str = "v", deleting_s: float | None = None) -> Record:
    spec = ReplicaSpec(endpoint="e", endpoint_uid="u", variant=variant, revision=1, log_group="g", log_stream="s")
    return Record(
        kind=WORKER,
        name="w",
        uid="u",
        revision=1,
        spec=spec,
        status=status,
        created_s=0.0,
        modified_s=0.0,
        deleting_s=deleting_s,
    )


def test_an_observed_placement_is_kept_beside_the_notices_until_another_one() -> None:
    status = observed_status(ReplicaStatus(), ON_GPU, now_s=1.0)
    assert (status.placement, status.notices) == ("w runs on GPU 0.", ["A notice."])
    silent = Observation(phase=WorkerPhase.READY)
    assert observed_status(status, silent, now_s=2.0) is status
    moved = Observation(phase=WorkerPhase.READY, placement="w runs on GPU 1.")
    assert observed_status(status, moved, now_s=2.0).placement == "w runs on GPU 1."


def test_placements_and_notices_of_a_variant_are_those_of_its_wanted_workers() -> None:
    status = observed_status(ReplicaStatus(), ON_GPU, now_s=1.0)
    waiting = ReplicaStatus(waiting="All GPUs are taken.")
    workers = [worker(status), worker(status, variant="w", deleting_s=5.0), worker(waiting, variant="x")]
    workers.append(worker(msgspec.structs.replace(waiting, waiting="No core is free.", failed_s=2.0), variant="x"))
    assert placements_of(workers) == {"v": ["w runs on GPU 0."], "x": ["All GPUs are taken."]}
    assert notices_of(workers) == {"v": ["A notice."], "x": []}


def test_workers_that_were_lost_after_they_were_ready_are_counted_where_placements_are_shown() -> None:
    lost = [worker(ReplicaStatus(ready_s=1.0, failed_s=failed_s)) for failed_s in (60.0, 120.0)]
    never_ready = worker(ReplicaStatus(failed_s=180.0))
    (text,) = placements_of([*lost, never_ready])["v"]
    assert text.startswith("2 restarts of workers, the last at 1970-01-01 00:02:00 UTC after log stream ")
    assert restarts_of([lost[0]])["v"][0].startswith("1 restart of workers")
    assert restarts_of([never_ready]) == {}


def test_a_worker_that_lost_a_container_names_it_and_its_log() -> None:
    record = worker(ReplicaStatus())
    several = msgspec.structs.replace(record.spec, containers=["pre", "chat"])
    record = replace(record, spec=several)
    assert several.logs("w") == {"w": "s", "w+pre": "s/pre", "w+chat": "s/chat"}
    failure = {"why": "", "ended_in": WorkerPhase.STARTING, "lacks_room": False, "log_tail": ["a line"]}
    text = worker_failure(record, **failure, container="chat")
    assert text.startswith("The chat for production variant v did not pass the ping health check.")
    assert "Its log (g, stream s/chat) ends with:\na line" in text
    assert worker_failure(record, **failure).startswith("The primary container for production variant v did not")


def test_a_model_of_one_container_is_read_as_one_of_several() -> None:
    *_, migrate = MODEL.migrations
    for before, after in ((None, None), ({"Image": "i"}, [{"Image": "i"}])):
        assert migrate({"members": {}, "container": before}, {}) == ({"members": {}, "containers": after}, {})
