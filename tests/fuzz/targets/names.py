"""Names, addresses and pages that strangers choose: hosts, images, places of models, metrics and logs of workers."""

import io
import math
import posixpath
import shutil
from urllib.parse import urlsplit

from headrace.core.errors import SettingsError
from headrace.inference.models.hub import parse_hub_ref
from headrace.platform.cloudwatch.metrics.worker_page import metrics_between, read_page, reading_between
from headrace.platform.cluster.worker_files import WorkerFiles
from headrace.platform.cluster.worker_logs import WorkerLogs
from headrace.platform.control.model.images import num_split_gpus, profile
from headrace.platform.host.backup import BackupWriter, unpack
from headrace.platform.host.confirmations import is_confirmation
from headrace.platform.state.transfer import StoreCopy
from headrace.platform.storage.own_bucket import check_request
from headrace.platform.storage.public_buckets import list_objects, public_source
from headrace.serving.artifacts.fetch_bounds import FetchFailed
from headrace.serving.artifacts.fetcher import _file_name, _folder_name, redacted
from headrace.serving.artifacts.sources import ArtifactSource, parse_location
from headrace.serving.http.origins import host_refusal, is_host_allowed, is_local_name, is_origin_allowed, name_of
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import HttpRequest
from tests.fuzz.target import Target
from tests.fuzz.targets.archives import scene


def _host(data):
    """A `Host` and an `Origin`; a server of this machine answers to local names and to its own pages only."""
    host, _, origin = data.decode("latin-1").partition("\n")
    assert not host or is_host_allowed(host, ()) == is_local_name(name_of(host))
    assert not is_host_allowed(host, ("*.example.com",)) or not host or name_of(host)
    if is_origin_allowed(origin, host, allowed=()):
        assert urlsplit(origin).netloc.lower() == host.lower()
    assert "\n" not in host_refusal(host, program="server")


def _image(data):
    """An image of a model, and variables one per line."""
    image, *lines = data.decode("utf-8", "replace").split("\n")
    environment = {name: value for name, _, value in (line.partition("=") for line in lines)}
    for is_strict in (True, False):
        assert num_split_gpus(profile(image, environment, own_images={}, is_strict=is_strict)) >= 0


def _place(data):
    """A place of a model: the names that are made of it stay in their folder, and its password is not shown."""
    uri = data.decode("utf-8", "replace")
    ref = parse_hub_ref(uri)
    assert ref is None or not {"..", ".", ""} & {*(ref.file_name or "x").split("/"), *ref.repo_id.split("/")}
    parts = urlsplit(uri)
    assert parts.scheme not in ("http", "https") or "@" not in urlsplit(redacted(uri)).netloc
    assert _is_name(_folder_name(uri))
    assert len(_folder_name(uri).encode()) < 256
    public_source(ArtifactSource(uri=uri), source="aws")
    assert _is_name(_file_name(parts.path))
    parse_location(uri)


def _is_name(name):
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _bucket(data):
    """A path and a source of a copy; what is let through leads to no key of the platform's own bucket."""
    path, _, source = data.decode("latin-1").partition("\n")
    check_request("own", path, {"x-amz-copy-source": source} if source else {})
    for place in (path, source):
        assert posixpath.normpath(f"/{place}").split("/")[1] != "own", place


def _listing(data):
    """Parameters of a list of a folder's files."""
    folder = scene("listing")
    (folder / "a").mkdir(exist_ok=True)
    for name in ("a/b", "a/c", "d"):
        (folder / name).touch()
    pairs = (line.partition("=") for line in data.decode("latin-1").split("\n"))
    list_objects(folder, {name: value for name, _, value in pairs}).decode()


def _link(data):
    """A link that confirms a subscription, which needs no key."""
    path, _, query = data.decode("latin-1").partition("?")
    if is_confirmation(HttpRequest("GET", path, query, {}, b""), path):
        assert path == "/"
        assert "Action=ConfirmSubscription" in query or "%" in query or "+" in query


def _metrics(data):
    """Two pages of metrics, which code of a model may write."""
    text = data.decode("utf-8", "replace")
    before, now = (read_page(part, at_s=at_s) for at_s, part in enumerate((text[: len(text) // 2], text)))
    reading = reading_between(before, now)
    numbers = (reading.output_tokens_per_s, reading.num_waiting, reading.kv_cache_share, reading.cpu_cores)
    assert all(number is None or math.isfinite(number) for number in numbers), reading
    for metric in metrics_between(before, now, memory_bytes=1 << 30):
        point = metric.point
        assert all(math.isfinite(value) for value in (point.total, point.minimum, point.maximum)), metric


def _log(data):
    """Lines of a worker's log: the events of both directions have its bytes."""
    logs = WorkerLogs(scene("logs"))
    file = WorkerFiles(scene("logs") / "w").log
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)
    events = logs.read("w", limit=10_000)
    assert [event.position for event in events] == sorted({event.position for event in events})
    assert sum(len(event.message.encode()) for event in events) <= 3 * len(data)
    logs.read("w", limit=3, is_backward=True, start_ms=0)


def _backup(data):
    """An archive that an operator got from elsewhere; nothing is written beside its folder."""
    around = scene("backup")
    source, folder = around / "b", around / "restored"
    source.write_bytes(data)
    folder.mkdir()
    try:
        unpack(source, folder, lambda *_: None)
    finally:
        assert sorted(path.name for path in around.iterdir()) == ["b", "restored"]
        assert not any(path.is_symlink() for path in folder.rglob("*"))
        shutil.rmtree(folder)


def _backup_seeds():
    out = io.BytesIO()
    writer = BackupWriter(out, lambda *_: None)
    writer.add_bytes("blobs/a", b"x" * 600)
    writer.finish(StoreCopy(schema_version=1, revision=1, term=1, rows=()), settings={}, has_objects=False)
    return {"small": out.getvalue()}


_PAGE = b"""# HELP vllm:generation_tokens_total Tokens
vllm:generation_tokens_total{model="m"} 12
vllm:num_requests_waiting 3
vllm:kv_cache_usage_perc 0.5
headrace_loaded_models 1
process_cpu_seconds_total 1.5
process_resident_memory_bytes 1e9
vllm:time_to_first_token_seconds_bucket{le="0.1"} 1
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 2
vllm:time_to_first_token_seconds_sum 0.5
headrace_container_cpu_seconds_total{container="a"} 1
"""
_TOKEN = b"/?Action=ConfirmSubscription&TopicArn=arn:aws:sns:us-east-1:1:t&Token=" + b"0" * 64

TARGETS = (
    Target(
        "host-names",
        _host,
        refusals=(),
        make_seeds=lambda: {"local": b"localhost:8080\nhttp://localhost:8080", "address": b"[::1]:1\nnull"},
        words=(b"[", b"]", b"@", b"%25", b".", b":", b"127.0.0.1", b".localhost", b".example.com", b"xn--", b"\xe9"),
        suite_cases=400,
    ),
    Target(
        "image-name",
        _image,
        refusals=(AwsError,),
        make_seeds=lambda: {
            "lmi": b"763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.33.0-lmi15.0.0-cu128\n"
            b"OPTION_TENSOR_PARALLEL_DEGREE=2",
            "tgi": b"ghcr.io/huggingface/text-generation-inference:3.3.4\nNUM_SHARD=1",
            "own": b"localhost:5000/team/server@sha256:00\nSM_VLLM_TENSOR_PARALLEL_SIZE=max",
        },
        words=(b":", b"@", b"/", b"neuron", b"-lmi", b"9" * 5000, b"\nPIPELINE_PARALLEL_DEGREE=", b"\xd9\xa5", b"."),
        suite_cases=400,
    ),
    Target(
        "model-place",
        _place,
        refusals=(FetchFailed, ValueError),
        make_seeds=lambda: {
            "s3": b"s3://b/k/model.tar.gz",
            "http": b"https://u:p@a.example/m.tar.gz?k=s#f",
            "hub": b"org/name/sub/m.gguf",
        },
        words=(
            b"..",
            b"%2e%2e",
            b"%2f",
            b"/",
            b"@",
            b"[",
            b"]",
            b"\\",
            b"\0",
            b".gguf",
            b"s3://",
            b"a" * 300,
            b"\xc3\xa9",
        ),
        suite_cases=400,
    ),
    Target(
        "own-bucket",
        _bucket,
        refusals=(AwsError,),
        make_seeds=lambda: {"path": b"/a/b\na/c", "own": b"/a/../own/key\n/own%2Fkey"},
        words=(b"own", b"..", b"/", b"//", b".", b"?versionId=1", b"%2F"),
        suite_cases=400,
    ),
    Target(
        "bucket-listing",
        _listing,
        refusals=(),
        make_seeds=lambda: {"second": b"list-type=2\nprefix=a/\ndelimiter=/\nmax-keys=1\nstart-after=a"},
        words=(b"location", b"=-1", b"\xb2", b"9" * 400, b"<", b"&", b"]]>"),
        suite_cases=300,
    ),
    Target(
        "confirmation-link",
        _link,
        refusals=(),
        make_seeds=lambda: {"link": _TOKEN},
        words=(b"&Action=DeleteTopic", b"&Token=", b"%26", b";", b"+", b"%00"),
        suite_cases=300,
    ),
    Target(
        "worker-page",
        _metrics,
        refusals=(),
        make_seeds=lambda: {"usual": _PAGE + _PAGE.replace(b"12", b"20")},
        words=(b"NaN", b"+Inf", b"1e308", b"-1e308", b'le="', b"}", b"{", b" ", b"_bucket", b"\xd9\xa5"),
        suite_cases=300,
    ),
    Target(
        "worker-log",
        _log,
        refusals=(),
        make_seeds=lambda: {
            "both": b'{"event": "a", "timestamp": "2026-01-01T00:00:00Z"}\n2026-01-01T00:00:00,123 INFO x\r\n\nlast'
        },
        words=(
            b'"timestamp": "',
            b"9999-12-31T23:59:59-23:59",
            b"0001-01-01T00:00:00",
            b"\n",
            b"\r",
            b"\xff",
            b"a" * 5000,
        ),
        suite_cases=200,
    ),
    Target(
        "backup",
        _backup,
        refusals=(SettingsError,),
        make_seeds=_backup_seeds,
        words=(b"../x\0", b"/etc/x\0", b"ustar\x0000", b"\x80" + b"\xff" * 11, b"\x1f\x8b\x08"),
        suite_cases=200,
        limit_s=4,
    ),
)
