"""A platform that serves HTTPS with a self-signed certificate, used by the SageMaker SDK and our commands."""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from .conftest import shell_for
from .running import Running, up
from .sdk_scripts import EXAMPLES, PIECES, check_all, cold_python, started

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def tls_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    command = "req -x509 -newkey rsa:2048 -noenc -subj /CN=headrace -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([openssl, *command.split(), *files], check=True, cwd=folder, stderr=subprocess.DEVNULL)
    running = up(folder / "data", certificate=folder / "cert.pem", key=folder / "key.pem")
    yield running
    done = running.headrace("down")
    assert (done.returncode, done.stdout) == (0, f"The platform at {running.url} has stopped.\n"), done.stderr
    assert running.stop() == 0, running.log()


def test_the_sagemaker_sdk_deploys_streams_and_deletes_through_tls(
    tls_platform: Running, smollm2_path: Path, tmp_path: Path
) -> None:
    shell = shell_for(tls_platform)
    assert shell["AWS_CA_BUNDLE"] == str(tls_platform.certificate)
    process = started(cold_python(), EXAMPLES / "tgi.py", shell, smollm2_path, tmp_path / "tgi")
    check_all({"tgi": process}, PIECES, tls_platform)


def test_our_commands_trust_the_certificate_of_the_platform_on_this_machine(tls_platform: Running) -> None:
    done = tls_platform.headrace("status")
    assert done.returncode == 0, done.stderr
    assert tls_platform.url in done.stdout


def test_chat_trusts_the_certificate_of_the_platform_on_this_machine(tls_platform: Running) -> None:
    done = tls_platform.headrace("chat", "--url", tls_platform.url, stdin="Hello\n")
    assert done.returncode != 0
    assert "lists no model" in done.stderr, done.stderr


def test_a_bundle_that_is_missing_is_named(tls_platform: Running, tmp_path: Path) -> None:
    elsewhere = replace(tls_platform, folder=tmp_path)
    for command in ("status", "ls"):
        bundle = str(tmp_path / "missing.pem")
        done = elsewhere.headrace(command, "--url", tls_platform.url, env={"AWS_CA_BUNDLE": bundle})
        assert done.returncode == 2, done.stdout + done.stderr
        assert f"{bundle}, which cannot be read: No such file or directory" in done.stderr


def test_a_name_that_the_certificate_lacks_is_explained(tls_platform: Running) -> None:
    url = tls_platform.url.replace("127.0.0.1", "localhost")
    done = tls_platform.headrace("status", "--url", url, env={"AWS_CA_BUNDLE": str(tls_platform.certificate)})
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"The certificate of {url} is not accepted: " in done.stderr
    assert "--url https://NAME:PORT" in done.stderr


def test_an_unknown_certificate_is_explained(tls_platform: Running, tmp_path: Path) -> None:
    elsewhere = replace(tls_platform, folder=tmp_path)
    done = elsewhere.headrace("ls", "--url", tls_platform.url)
    assert done.returncode == 1
    assert "self-signed certificate" in done.stderr
    assert "AWS_CA_BUNDLE" in done.stderr
