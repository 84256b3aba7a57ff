"""Input of batch transform jobs: objects of several formats, manifests, answers of models, and paths in records."""

import gzip
import json
import struct

from headrace.platform.jobs.inputs import _Gunzip, _manifest
from headrace.platform.jobs.processing import Processing, ProcessingFailed
from headrace.platform.jobs.splitting import InputBroken, Splitter
from headrace.serving.wire.aws.json_path import JsonPathError, parse_json_path
from tests.fuzz.target import Target

_FORMATS = ("None", "Line", "RecordIO", "TFRecord")
_RECORD = {"id": 1, "a b": [1, {"x": [2]}], "c": {"d": "e"}}


def _bodies(split: str, content: bytes, *, is_multi: bool, part_bytes: int) -> list[bytes]:
    splitter = Splitter(split, is_multi_record=is_multi, max_bytes=1000)
    parts = [content[at : at + part_bytes] for at in range(0, len(content), part_bytes)]
    return [*(body for part in parts for body in splitter.feed(part)), *splitter.feed(b"", is_end=True)]


def _split(data: bytes) -> None:
    """The requests do not depend on where the parts of an object end, and together have all of a binary format."""
    split, content = _FORMATS[data[0] % 4] if data else "None", data[1:]
    whole = _bodies(split, content, is_multi=True, part_bytes=4096)
    assert whole == _bodies(split, content, is_multi=True, part_bytes=7)
    if split != "Line":
        assert b"".join(whole) == content
    assert all(len(body) <= 1000 for body in _bodies(split, content, is_multi=False, part_bytes=64))


def _unpack(data: bytes) -> None:
    unpack = _Gunzip()
    num_bytes = sum(len(piece) for at in range(0, len(data), 64) for piece in unpack.feed(data[at : at + 64]))
    assert num_bytes <= 2000 * max(1, len(data))


def _path(data: bytes) -> None:
    path = parse_json_path(data[:63].decode("utf-8", errors="replace"))
    json.dumps(path.select(_RECORD))


def _answer(data: bytes) -> None:
    kind, _, content = data.partition(b"\n")
    body, _, answer = content.partition(b"\0")
    types = ("text/csv", "application/json", "application/jsonlines")
    source = {"ContentType": types[len(kind) % 3], "SplitType": "Line"}
    filters = {"InputFilter": "$[0]", "OutputFilter": "$[-1]", "JoinSource": "Input"}
    made = Processing.of({"TransformInput": source, "DataProcessing": filters}, is_multi_record=len(kind) % 2 == 1)
    made.request(body)
    made.result(body, answer)


_IO = struct.pack("<II", 0xCED7230A, 5) + b"abcde\0\0\0"
_TF = struct.pack("<Q", 3) + b"crc1abccrc2"

TARGETS = (
    Target(
        "transform-object",
        _split,
        refusals=(InputBroken,),
        make_seeds=lambda: {"lines": b"\1a\n\nb\r\nc", "recordio": b"\2" + 2 * _IO, "tfrecord": b"\3" + 2 * _TF},
        words=(b"\x0a\x23\xd7\xce", b"\n", b"\x20\x00\x00\x00", b"\x60\x00\x00\x00"),
        suite_cases=500,
    ),
    Target(
        "transform-gzip",
        _unpack,
        refusals=(InputBroken,),
        make_seeds=lambda: {"two": gzip.compress(b"a\n" * 100, mtime=0) + gzip.compress(b"b", mtime=0)},
        words=(b"\x1f\x8b\x08",),
        suite_cases=300,
    ),
    Target(
        "transform-manifest",
        _manifest,
        refusals=(InputBroken,),
        make_seeds=lambda: {"two": b'[{"prefix": "s3://b/p/"}, "a", "b/c"]'},
        is_json=True,
        suite_cases=300,
    ),
    Target(
        "json-path",
        _path,
        refusals=(JsonPathError,),
        make_seeds=lambda: {"steps": b"$['a b'][1].x[0,-1]", "many": b"$.c['d','d'].*", "slice": b"$['a b'][0:].x"},
        words=(b"[", b"]", b"'", b'"', b",", b":", b"-", b"*", b".", b"$"),
        suite_cases=500,
    ),
    Target(
        "transform-answer",
        _answer,
        refusals=(ProcessingFailed,),
        make_seeds=lambda: {
            "csv": b'\n1,"a,b"\n3,4\0x\ny\n',
            "json": b"a\n[1]\0[2]",
            "lines": b"aa\n[1]\n[2]\0[3]\n[4]",
        },
        words=(b'"', b",", b"\r", b"\0", b"[", b"{", b"NaN", b"1e999"),
        suite_cases=500,
    ),
)
