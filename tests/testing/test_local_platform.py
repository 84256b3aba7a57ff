"""A local platform for tests: the environment that it sets and restores, and a start that fails."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import boto3
import pytest

from headrace.testing.local_platform import LocalPlatform, LocalPlatformFailed, local_platform

PLATFORM = LocalPlatform(
    url="http://127.0.0.1:9",
    region="eu-west-1",
    access_key="HRAK",
    secret_key="s3cret",
    ca_bundle=None,
    log_path=Path("platform.log"),
    timeout_s=1.0,
)


def test_the_environment_points_at_the_platform_and_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    before, finders = dict(os.environ), list(sys.meta_path)
    with PLATFORM.environment():
        inside = dict(os.environ)
    assert (inside["AWS_ENDPOINT_URL"], inside["AWS_REGION"]) == (PLATFORM.url, "eu-west-1")
    assert (inside["AWS_ACCESS_KEY_ID"], inside["AWS_SECRET_ACCESS_KEY"]) == ("HRAK", "s3cret")
    assert "s3cret" not in repr(PLATFORM)
    assert "AWS_PROFILE" not in inside
    assert dict(os.environ) == before
    assert sys.meta_path == finders


def test_clients_of_the_default_session_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", boto3.session.Session(region_name="us-west-2"))
    session = boto3.DEFAULT_SESSION
    with PLATFORM.environment():
        client = boto3.client("sagemaker")
    assert (client.meta.endpoint_url, client.meta.region_name) == (PLATFORM.url, "eu-west-1")
    client.close()
    assert boto3.DEFAULT_SESSION is session


def test_a_client_that_names_an_address_of_aws_gets_the_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    keys = {"region_name": "eu-west-1", "aws_access_key_id": "k", "aws_secret_access_key": "s"}
    found = []
    for block in (PLATFORM.environment(), PLATFORM.environment(), nullcontext()):
        with block:
            client = boto3.client("sts", endpoint_url="https://sts.eu-west-1.amazonaws.com", **keys)
        found.append(client.meta.endpoint_url)
        client.close()
    assert found == [PLATFORM.url, PLATFORM.url, "https://sts.eu-west-1.amazonaws.com"]


def test_a_start_that_fails_shows_the_log(tmp_path: Path) -> None:
    expected = r"ended with exit code 2. Its log:\n(?s:.*)account is 'one'; expected 12 digits"
    with pytest.raises(LocalPlatformFailed, match=expected), local_platform(tmp_path / "new", "--account", "one"):
        raise AssertionError
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["platform.log"]
