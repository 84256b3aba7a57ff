"""Values that may be printed in a traceback or a log show no secret."""

from pathlib import Path

import pytest

from headrace.platform.cluster.launcher import Handle, WorkerSpec
from headrace.platform.cluster.ray_messages import ActorAssignment
from headrace.platform.cluster.worker_files import Assignment, worker_files
from headrace.platform.state.routes import Replica
from headrace.platform.storage.s3_signing import S3Access
from headrace.serving.artifacts.sources import GrantedObject, ObjectGrant, ObjectLocation

SECRET = "sesame"
OBJECT = GrantedObject(location=ObjectLocation("b", "m"), etag="e", num_bytes=1, url=f"http://s/{SECRET}")
GRANT = ObjectGrant(uri="s3://b/m", objects=(OBJECT,))
SPEC = WorkerSpec(name="w", environment={"HF_TOKEN": SECRET}, grants=(GRANT,))


@pytest.mark.parametrize(
    "value",
    [
        SPEC,
        GRANT,
        Handle(launcher="ray", url="http://127.0.0.1:1", facts={}, token=SECRET),
        ActorAssignment(spec=SPEC, token=SECRET, namespace="n", log_position=0, version="0"),
        Assignment(spec=SPEC, port=1, cache_folder="c", log_position=0, token=SECRET),
        Replica(worker="w", url="http://127.0.0.1:1", token=SECRET),
        S3Access(endpoint_url="http://127.0.0.1:1", access_key="a", secret_key=SECRET, region="r"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_repr_of_a_value_has_no_secret(value: object) -> None:
    assert SECRET not in repr(value)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc", "a\0b", ".hidden", "x" * 201])
def test_the_name_of_a_worker_is_no_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a worker name"):
        worker_files(tmp_path, name)
