"""The bucket in which machines share files, which clients neither see nor reach."""

from contextlib import closing
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from headrace.platform.gateway.objects import ObjectFailed, S3Objects
from headrace.platform.state.blobs import open_blobs
from headrace.platform.storage.object_grants import ObjectGrants
from headrace.platform.storage.shared_files import Bucket, SharedFiles
from tests import plain_http

from .conftest import MIB, OWN, Proxied


def test_files_that_machines_share_are_in_a_bucket_that_clients_do_not_see(s3: Proxied, tmp_path: Path) -> None:
    assert s3.access is not None
    direct = S3Objects(s3.access.direct_options(), own_bucket=OWN)
    with closing(open_blobs("sqlite://", tmp_path / "blobs.sqlite")) as blobs:
        machines = [
            SharedFiles(tmp_path / name, "files", blobs=blobs, bucket=Bucket(OWN, direct.client, blobs))
            for name in ("a", "b")
        ]
        path = machines[0].folder(machines[0].root / "é") / "content"
        path.write_bytes(b"x" * MIB)
        machines[0].keep(path)
        copy = machines[1].fetch(machines[1].root / "é" / "content")
        assert (copy.read_bytes(), copy.stat().st_mode & 0o777) == (path.read_bytes(), 0o600)
        assert list(machines[1].contents(machines[1].root / "é")) == ["content"]
        assert machines[1].num_bytes() == MIB
        with pytest.raises(FileNotFoundError):
            machines[1].fetch(machines[1].root / "none")
        [key] = [entry["Key"] for entry in direct.client().list_objects_v2(Bucket=OWN)["Contents"]]
        with pytest.raises(ObjectFailed, match="platform's own bucket"):
            direct.read(f"s3://{OWN}/{key}", MIB)
        grant = ObjectGrants(s3.access, OWN).for_uri(f"s3://{OWN}/{key}")
        assert grant is not None
        assert "platform's own" in grant.error
        assert [bucket["Name"] for bucket in s3.client.list_buckets()["Buckets"]] == ["bucket"]
        for operation, more in (
            ("get_object", {"Bucket": OWN, "Key": key}),
            ("put_object", {"Bucket": OWN, "Key": key, "Body": b""}),
            ("list_objects_v2", {"Bucket": OWN}),
            ("delete_bucket", {"Bucket": OWN}),
            ("copy_object", {"Bucket": "bucket", "Key": "copy", "CopySource": {"Bucket": OWN, "Key": key}}),
        ):
            with pytest.raises(ClientError) as refused:
                getattr(s3.client, operation)(**more)
            assert refused.value.response["Error"]["Code"] == "AccessDenied", operation
        for target in (f"/x/../{OWN}/{key}", f"//{OWN}/{key}", f"/./{OWN}/"):
            assert plain_http.get(f"{s3.url}{target}").status_code == 403, target
        machines[1].discard(copy)
        direct.client().delete_bucket(Bucket=OWN)
        direct.client().close()
