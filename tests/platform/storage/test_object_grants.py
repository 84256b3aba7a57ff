"""A worker may read the objects that its model names, and no others."""

from collections.abc import Iterator

import msgspec
import pytest

from headrace.platform.cluster.launcher import WorkerSpec
from headrace.platform.storage.object_grants import ObjectGrants
from headrace.serving.artifacts.fetch_bounds import Deadline, FetchFailed
from headrace.serving.artifacts.object_grants import GrantedObjects
from headrace.serving.artifacts.sources import ArtifactSource, ObjectLocation
from tests.serving.artifacts.archive_maker import archive, file
from tests.serving.artifacts.object_server import Objects, ObjectServer

PROPERTIES = b"engine=MPI\noption.model_id=s3\\://b/named/\n"
CODE = archive([file("mymodel/serving.properties", PROPERTIES)])


@pytest.fixture(scope="module")
def objects() -> Iterator[Objects]:
    with ObjectServer() as served:
        served.contents |= {
            f"/b/{key}": b"x"
            for key in ("m/w", "m/deep/w", "m2/w", "named/w", "other/w", "draft/w", "a/model.gguf", "code.zip")
        }
        served.contents |= {"/b/code.tar.gz": CODE, "/b/lmi/serving.properties": PROPERTIES}
        yield served


PREFIX = ArtifactSource(uri="s3://b/m", is_prefix=True, is_archive=False)


@pytest.mark.parametrize(
    ("spec", "readable"),
    [
        ({"artifacts": (PREFIX,)}, {"m/w", "m/deep/w"}),
        ({"artifacts": (ArtifactSource(uri="s3://b/code.zip", is_archive=False),)}, {"code.zip"}),
        (
            {"artifacts": (PREFIX, ArtifactSource(uri="s3://b/draft/", is_prefix=True, channel="draft"))},
            {"m/w", "m/deep/w", "draft/w"},
        ),
        ({"environment": {"HF_MODEL_ID": "s3://b/a/model.gguf", "OTHER": "s4://b/m"}}, {"a/model.gguf"}),
        ({"environment": {"SAGEMAKER_SUBMIT_DIRECTORY": "s3://b/code.tar.gz"}}, {"code.tar.gz"}),
        ({"artifacts": (ArtifactSource(uri="s3://b/code.tar.gz"),)}, {"code.tar.gz", "named/w"}),
        ({"artifacts": (ArtifactSource(uri="s3://b/lmi/", is_prefix=True),)}, {"lmi/serving.properties", "named/w"}),
        (
            {
                "artifacts": (ArtifactSource(uri="s3://b/code.tar.gz"),),
                "environment": {"HF_MODEL_ID": "org/model"},
            },
            {"code.tar.gz"},
        ),
        ({"artifacts": (ArtifactSource(uri="/local/model"),), "environment": {"HF_MODEL_ID": "org/model"}}, set()),
    ],
)
def test_a_worker_may_read_what_its_model_names_and_nothing_else(
    objects: Objects, spec: dict[str, object], readable: set[str]
) -> None:
    granted = objects.granted(WorkerSpec(name="w", **spec))
    assert {found.location.key for grant in granted.grants for found in grant.objects} == readable
    with pytest.raises(FetchFailed, match=r"s3://b/other/ may not be read by this worker"):
        list(GrantedObjects(granted.grants, Deadline(5)).list_prefix(ObjectLocation("b", "other/")))
    with pytest.raises(FetchFailed, match="may not be read by this worker"):
        GrantedObjects(granted.grants, Deadline(5)).head(ObjectLocation("b", "other/w"))


def test_what_a_worker_is_given_has_no_key_of_the_object_storage(objects: Objects) -> None:
    grants = ObjectGrants(objects.access)
    spec = WorkerSpec(name="w", artifacts=(PREFIX,))
    given = msgspec.json.encode([grants.for_worker(spec), grants.for_uri("s3://b/m/")]).decode()
    assert objects.access.secret_key == "s"
    assert '"s"' not in given
    assert grants.for_uri("https://example.com/adapter.tar.gz") is None


def test_why_nothing_could_be_granted_is_for_the_worker_to_report(objects: Objects) -> None:
    spec = WorkerSpec(name="w", artifacts=(ArtifactSource(uri="s3://b/missing.tar.gz"),))
    (grant,) = objects.granted(spec).grants
    assert grant.error.startswith("s3://b/missing.tar.gz does not exist")
    with pytest.raises(FetchFailed, match="does not exist"):
        GrantedObjects((grant,), Deadline(5)).head(ObjectLocation("b", "missing.tar.gz"))
