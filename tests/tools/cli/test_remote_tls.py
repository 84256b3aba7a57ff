"""`chat --url`, `generate --url` and `bench` through TLS: the certificates that they trust, and their refusals."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from headrace.core.errors import SettingsError, Unavailable
from headrace.platform.host.folders import Address, DataFolder
from headrace.testing.server import EchoServer, echo_server
from headrace.tools.bench.run import BenchOptions, run_benchmark
from headrace.tools.bench.workload import Arrivals, Synthetic, parse_lengths
from headrace.tools.cli.api_key import ca_bundle_for
from headrace.tools.cli.remote import RemoteSource
from tests.serving.http.test_tls import write_certificate

REFUSAL = r"The certificate of 127\.0\.0\.1:\d+ is not accepted: .+ set SSL_CERT_FILE"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> str:
    path = tmp_path_factory.mktemp("root") / "root.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[EchoServer]:
    certificate, key = write_certificate(tmp_path_factory.mktemp("tls"), authority, "127.0.0.1")
    with echo_server(tls_cert=str(certificate), tls_key=str(key)) as running:
        yield running


async def start(url: str, ca_bundle: str | None) -> str:
    source = RemoteSource(url, ca_bundle=ca_bundle)
    try:
        await source.start()
        return source.info.name
    finally:
        await source.close(deadline_s=0)


async def test_a_server_is_reached_with_the_certificates_to_trust(server: EchoServer, root: str) -> None:
    assert await start(server.url, root) == "echo"


async def test_an_unknown_certificate_is_explained(server: EchoServer) -> None:
    with pytest.raises(Unavailable, match=REFUSAL):
        await start(server.url, None)


async def test_a_load_test_explains_an_unknown_certificate(server: EchoServer, root: str) -> None:
    options = BenchOptions(
        url=server.url,
        levels=(Arrivals(kind="closed", concurrency=1),),
        source=Synthetic(prompt_tokens=parse_lengths("4"), output_tokens=parse_lengths("4")),
        num_requests=1,
        warmup_requests=0,
        ca_bundle=root,
    )
    report = await run_benchmark(options, lambda _label, _record: None)
    assert report.levels[0].first_failures == ()
    with pytest.raises(Unavailable, match=REFUSAL):
        await run_benchmark(BenchOptions(url=server.url, levels=options.levels, source=options.source), print)


async def test_certificates_that_cannot_be_read_are_refused(server: EchoServer, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.pem, which cannot be read: No such file or directory"):
        await start(server.url, str(tmp_path / "missing.pem"))


def test_the_certificate_of_the_platform_on_this_machine_is_trusted(tmp_path: Path) -> None:
    shell = {"HEADRACE_UP_DATA_DIR": str(tmp_path), "AWS_CA_BUNDLE": "/root.pem"}
    url = "https://127.0.0.1:7450"
    with DataFolder(tmp_path).announced(Address(url=url, ca_bundle="/cert.pem")):
        assert ca_bundle_for(url, shell) == "/cert.pem"
        assert ca_bundle_for(f"{url}/endpoints/chat", shell) == "/cert.pem"
        assert ca_bundle_for("https://127.0.0.1:74501", shell) == "/root.pem"
    assert ca_bundle_for(url, shell) == "/root.pem"
    assert ca_bundle_for(url, {**shell, "AWS_CA_BUNDLE": ""}) is None
    assert ca_bundle_for("http://127.0.0.1:7450", shell) is None
