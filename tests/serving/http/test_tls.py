"""TLS of a real server, with certificates of an authority of this test run."""

import json
import shutil
import socket
import ssl
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from headrace.core.errors import SettingsError
from headrace.serving.http.client import ClientRequest, send_once
from headrace.serving.http.client_connection import ConnectFailed
from headrace.serving.http.tls import client_context, pin_of, server_context, trusts_itself
from headrace.testing.server import EchoServer, echo_server
from tests.waiting import WAIT_S


def write_certificate(folder: Path, authority: trustme.CA, *names: str) -> tuple[Path, Path]:
    """The files of a certificate for `names`, and of its key."""
    issued = authority.issue_cert(*names)
    certificate, key = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(key))
    return certificate, key


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> tuple[Path, Path]:
    return write_certificate(tmp_path, authority, "localhost", "127.0.0.1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[EchoServer]:
    certificate, key = write_certificate(tmp_path_factory.mktemp("tls"), authority, "127.0.0.1")
    with echo_server(tls_cert=str(certificate), tls_key=str(key)) as running:
        yield running


@pytest.fixture(scope="module")
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_answers_are_served_whole_and_streamed(server: EchoServer, trusting: ssl.SSLContext) -> None:
    assert server.url.startswith("https://127.0.0.1:")
    with httpx.Client(base_url=server.url, verify=trusting, timeout=WAIT_S, trust_env=False) as client:
        whole = client.post("/generate", json={"inputs": "a b c"})
        assert whole.json()["generated_text"]
        with client.stream("POST", "/generate_stream", json={"inputs": "a b c"}) as response:
            events = [json.loads(line[5:]) for line in response.iter_lines() if line.startswith("data:")]
    assert events[-1]["generated_text"] == whole.json()["generated_text"]


def test_a_client_that_does_not_trust_the_certificate_is_not_served(server: EchoServer) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{server.url}/ping", trust_env=False, timeout=WAIT_S)


async def test_a_pinned_server_is_reached_and_another_gets_nothing(server: EchoServer, authority: trustme.CA) -> None:
    port = int(server.url.rpartition(":")[2])
    pin = pin_of(ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port))))
    request = ClientRequest(
        path="/generate", body=b'{"inputs": "a b c"}', headers=(("content-type", "application/json"),)
    )
    for scheme in ("https", "http"):
        async with send_once(f"{scheme}://127.0.0.1:{port}#{pin}", request) as response:
            assert response.status == 200
    for other in (pin_of(ssl.PEM_cert_to_DER_cert(authority.cert_pem.bytes().decode())), pin[:-1]):
        with pytest.raises(ConnectFailed, match="has another certificate"):
            async with send_once(f"{server.url}#{other}", request):
                pass


@pytest.mark.parametrize("first", [b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 64])
def test_what_is_no_handshake_is_dropped_and_the_server_goes_on(
    server: EchoServer, trusting: ssl.SSLContext, first: bytes
) -> None:
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
        client.sendall(first)
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as received:
            assert b"200 OK" not in received.read()
    assert httpx.get(f"{server.url}/ping", verify=trusting, trust_env=False, timeout=WAIT_S).status_code == 200


def test_old_versions_of_tls_are_refused(files: tuple[Path, Path], authority: trustme.CA) -> None:
    context = server_context(*files)
    assert context is not None
    context.set_ciphers("ALL:@SECLEVEL=0")  # otherwise it is the ciphers that old versions lack
    with pytest.raises(ssl.SSLError, match=r"(?i)unsupported.protocol"):
        handshake(context, authority, ssl.TLSVersion.TLSv1_1)
    assert handshake(context, authority, ssl.TLSVersion.TLSv1_2).version() == "TLSv1.2"
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = ssl.TLSVersion.TLSv1_1
    assert handshake(context, authority, ssl.TLSVersion.TLSv1_1).version() == "TLSv1.1", "this client speaks it"


def handshake(context: ssl.SSLContext, authority: trustme.CA, version: ssl.TLSVersion | None = None) -> ssl.SSLObject:
    """Connect a client, of one version of TLS or of all that are safe; return its side."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(client)
    if version is not None:
        client.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings(category=DeprecationWarning, action="ignore"):
            client.minimum_version = client.maximum_version = version
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    far = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(8):
        for end in (near, far):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return near


def handshake_serial(context: ssl.SSLContext, authority: trustme.CA) -> str:
    """The serial number of the certificate that a new connection gets."""
    certificate = handshake(context, authority).getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


def test_a_renewed_certificate_is_used_by_new_connections(
    files: tuple[Path, Path], tmp_path: Path, authority: trustme.CA
) -> None:
    context = server_context(*files, check_interval_s=0)
    assert context is not None
    first = handshake_serial(context, authority)
    assert handshake_serial(context, authority) == first
    write_certificate(tmp_path, authority, "localhost")
    assert handshake_serial(context, authority) != first


def test_a_renewal_that_cannot_be_read_leaves_the_certificate_in_use(
    files: tuple[Path, Path], authority: trustme.CA
) -> None:
    context = server_context(*files, check_interval_s=0)
    assert context is not None
    first = handshake_serial(context, authority)
    files[1].write_text("half of a key")
    assert handshake_serial(context, authority) == first
    files[1].unlink()
    assert handshake_serial(context, authority) == first


def test_both_may_be_in_one_file(files: tuple[Path, Path], tmp_path: Path, authority: trustme.CA) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(files[0].read_bytes() + files[1].read_bytes())
    context = server_context(both, None)
    assert context is not None
    assert handshake_serial(context, authority)


def test_without_files_the_server_speaks_http() -> None:
    assert server_context(None, None) is None


def test_files_that_cannot_be_used_are_refused_by_name(
    files: tuple[Path, Path], tmp_path: Path, authority: trustme.CA
) -> None:
    certificate, key = files
    (tmp_path / "other").mkdir()
    _, other_key = write_certificate(tmp_path / "other", authority, "localhost")
    text = tmp_path / "text"
    text.write_text("no certificate")
    encrypted = tmp_path / "encrypted.pem"
    openssl = shutil.which("openssl")
    if openssl is not None:
        subprocess.run([openssl, "pkey", "-in", key, "-aes128", "-passout", "pass:x", "-out", encrypted], check=True)
    for paths, name, part in (
        ((tmp_path / "none", None), "tls_cert", "cannot be read: No such file"),
        ((certificate, tmp_path / "none"), "tls_key", "cannot be read: No such file"),
        ((certificate, tmp_path), "tls_key", "cannot be read: Is a directory"),
        ((None, key), "tls_key", "without a tls_cert"),
        ((certificate, other_key), "tls_key", "is not the key of the certificate"),
        ((text, key), "tls_cert", "No certificate with its key"),
        ((certificate, text), "tls_cert", "No certificate with its key"),
        *([((certificate, encrypted), "tls_key", "is encrypted")] if openssl is not None else []),
    ):
        with pytest.raises(SettingsError, match=part) as caught:
            server_context(*paths)
        assert caught.value.facts["name"] == name


def test_a_client_trusts_a_file_or_a_folder_of_certificates(authority: trustme.CA, tmp_path: Path) -> None:
    root = tmp_path / "root.pem"
    authority.cert_pem.write_to_path(str(root))
    num_known = len(client_context(None).get_ca_certs())
    assert len(client_context(str(root)).get_ca_certs()) == num_known + 1
    assert client_context(str(tmp_path)).verify_mode is ssl.CERT_REQUIRED  # OpenSSL reads a folder at the handshake


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), ("no PEM", "it has no certificate in PEM")])
def test_certificates_to_trust_that_cannot_be_read_are_refused(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    path = tmp_path / "root.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=f"{path}, which cannot be read: {reason}.* Set AWS_CA_BUNDLE"):
        client_context(str(path))


def test_only_a_certificate_that_is_its_own_root_can_be_trusted_by_itself(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    context = server_context(*files)
    assert context is not None
    assert not trusts_itself(files[0], context)
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    command = "req -x509 -newkey rsa:2048 -noenc -subj /CN=localhost -keyout own-key.pem -out own.pem"
    subprocess.run([openssl, *command.split()], check=True, cwd=tmp_path, stderr=subprocess.DEVNULL)
    own = server_context(tmp_path / "own.pem", tmp_path / "own-key.pem")
    assert own is not None
    assert trusts_itself(tmp_path / "own.pem", own)
