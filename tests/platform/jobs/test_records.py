"""Objects are split into requests, answers filtered and joined, and progress survives a kill: without a platform."""

import gzip
import struct
from pathlib import Path

import pytest

from headrace.core.files import Files
from headrace.platform.jobs import inputs as inputs_module
from headrace.platform.jobs.inputs import InputFile, find_inputs, read_bodies
from headrace.platform.jobs.processing import Processing, ProcessingFailed
from headrace.platform.jobs.splitting import InputBroken, Splitter
from headrace.platform.jobs.spool import JobFolder
from tests.platform.gateway.async_parts import MemoryObjects

MAGIC = struct.pack("<I", 0xCED7230A)


def record_io(data: bytes, flag: int = 0) -> bytes:
    return MAGIC + struct.pack("<I", flag << 29 | len(data)) + data + b"\0" * (-len(data) % 4)


def tf_record(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + b"crc1" + data + b"crc2"


IO = [record_io(b"abcde"), record_io(b"12", 1) + record_io(b"34", 2) + record_io(b"5", 3), record_io(b"")]
TF = [tf_record(b"abc"), tf_record(b""), tf_record(b"defg")]


@pytest.mark.parametrize(
    ("split", "is_multi", "content", "bodies"),
    [
        ("None", True, b"a\nb\n", [b"a\nb\n"]),
        ("Line", False, b"a\n\nb\r\nc", [b"a", b"b\r", b"c"]),
        ("Line", True, b"aaaa\nbbbb\ncc\n\ndddd", [b"aaaa\nbbbb\ncc\n", b"dddd\n"]),
        ("RecordIO", False, b"".join(IO), [b"abcde", b"12" + MAGIC + b"34" + MAGIC + b"5", b""]),
        ("RecordIO", True, b"".join(IO[::2]), [IO[0], IO[2]]),
        ("TFRecord", False, b"".join(TF), [b"abc", b"", b"defg"]),
        ("TFRecord", True, TF[1] + TF[1], [TF[1], TF[1]]),
        ("Line", False, b"x" * 17 + b"\n", "a record has more than"),
        ("None", False, b"x" * 99, "Too much data for max payload size"),
        ("TFRecord", False, TF[0][:-1], "Its last record is incomplete"),
        ("RecordIO", False, b"not RecordIO", "does not begin with the magic number"),
    ],
)
def test_an_object_is_split_wherever_its_parts_end(
    split: str, is_multi: bool, content: bytes, bodies: list[bytes] | str
) -> None:
    for part_bytes in (1, 3, len(content)):
        splitter = Splitter(split, is_multi_record=is_multi, max_bytes=16)

        def found(splitter: Splitter = splitter, part_bytes: int = part_bytes) -> list[bytes]:
            parts = [content[at : at + part_bytes] for at in range(0, len(content), part_bytes)]
            return [
                *(body for part in parts for body in splitter.feed(part)),
                *splitter.feed(b"", is_end=True),
            ]

        if isinstance(bodies, str):
            with pytest.raises(InputBroken, match=bodies):
                found()
        else:
            assert found() == bodies


def processing(content_type: str, *, split: str = "Line", is_multi: bool = False, **members: str) -> Processing:
    source = {"ContentType": content_type, "SplitType": split}
    return Processing.of({"TransformInput": source, "DataProcessing": members}, is_multi_record=is_multi)


CSV = processing("text/csv; charset=utf-8", InputFilter="$[1:]", OutputFilter="$[0,-1]", JoinSource="Input")
JSON = processing("application/json", InputFilter="$.x", OutputFilter="$['id','SageMakerOutput']", JoinSource="Input")
LINES = processing("application/jsonlines", is_multi=True, JoinSource="Input")


@pytest.mark.parametrize(
    ("made", "body", "sent", "answer", "kept"),
    [
        (processing("any/thing"), b"\xff", b"\xff", b"\xfe", b"\xfe"),
        (CSV, b'1,2,"a,b"\n', b'2,"a,b"\n', b"0.5", b"1,0.5\n"),
        (CSV, b"1,2\n3,4\n", b"2\n4\n", b"0.1\n0.2\n", b"1,0.1\n3,0.2\n"),
        (JSON, b'{"id": 1, "x": {"y": "\xc3\xa9"}}', '{"y":"é"}'.encode(), b"[1]", b'{"id":1,"SageMakerOutput":[1]}'),
        (LINES, b'["a"]\n{"b": 1}\n', b'["a"]\n{"b": 1}\n', b"1\n2\n",
         b'{"SageMakerInput":["a"],"SageMakerOutput":1}\n{"b":1,"SageMakerOutput":2}\n'),
        (processing("application/json", split="None", OutputFilter="$.a"), b"x", b"x", b'{"a": 1,\n"b": 2}', b"1"),
    ],
)  # fmt: skip
def test_records_are_filtered_and_joined(
    made: Processing, body: bytes, sent: bytes, answer: bytes, kept: bytes
) -> None:
    assert made.request(body) == sent
    assert made.result(body, answer) == kept


@pytest.mark.parametrize(
    ("made", "body", "answer", "why"),
    [
        (LINES, b"1\n2\n", b"1\n", r"mismatched line count between the input and the output \(2 and 1\)"),
        (JSON, b'{"id": 1, "x": 2}', b"no", "Fail to read the output as JSON"),
        (JSON, b'{"x": 2}', b"1", "selects nothing"),
        (CSV, b"1,2", b"\xff", "Fail to read the output as CSV"),
    ],
)
def test_what_cannot_be_joined_is_named(made: Processing, body: bytes, answer: bytes, why: str) -> None:
    with pytest.raises(ProcessingFailed, match=why):
        made.result(body, answer)


def listing(uri: str, kind: str = "S3Prefix") -> dict[str, object]:
    source = {"S3DataSource": {"S3DataType": kind, "S3Uri": uri}}
    return {"TransformInput": {"DataSource": source}, "TransformOutput": {"S3OutputPath": "s3://out/to/"}}


async def test_outputs_have_the_keys_of_their_inputs_below_the_prefix() -> None:
    objects = MemoryObjects()
    for key in ("in/", "in/a.csv", "in/b/c d.csv", "in2/x.csv", "manifest"):
        objects.objects[f"s3://data/{key}"] = (b"x", "")
    objects.objects["s3://data/manifest"] = (b'[{"prefix": "s3://data/in/"}, "b/c d.csv", "a.csv", "a.csv"]', "")

    async def found(uri: str, kind: str = "S3Prefix") -> dict[str, str]:
        files = await find_inputs(listing(uri, kind), objects)
        return {file.uri.removeprefix("s3://data/"): file.output_uri.removeprefix("s3://out/to/") for file in files}

    below = {"in/a.csv": "a.csv.out", "in/b/c d.csv": "b/c d.csv.out"}
    assert await found("s3://data/in/") == below
    assert await found("s3://data/in") == below | {"in2/x.csv": "in2/x.csv.out"}
    assert await found("s3://data/in/a.csv") == {"in/a.csv": "a.csv.out"}
    assert (await found("s3://data"))["in2/x.csv"] == "in2/x.csv.out"
    assert await found("s3://data/manifest", "ManifestFile") == below
    objects.objects["s3://data/gone"] = (b'[{"prefix": "s3://data/in/"}, "gone.csv"]', "")
    for uri, kind, why in (
        ("s3://data/none", "S3Prefix", "No objects found"),
        ("s3://data/in/a.csv", "ManifestFile", "malformed"),
        ("s3://data/gone", "ManifestFile", r"in/gone\.csv, which does not exist"),
    ):
        with pytest.raises(InputBroken, match=why):
            await found(uri, kind)


async def test_compressed_objects_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "PART_BYTES", 8)
    objects, lines = MemoryObjects(), [b"%03d" % number for number in range(100)]
    packed = gzip.compress(b"\n".join(lines[:50]) + b"\n") + gzip.compress(b"\n".join(lines[50:]))

    async def read(content: bytes, *, is_gzip: bool) -> list[bytes]:
        objects.objects["s3://b/k"] = (content, "")
        file = InputFile(uri="s3://b/k", output_uri="", num_bytes=len(content), etag="")
        splitter = Splitter("Line", is_multi_record=False, max_bytes=100)
        return [body async for body in read_bodies(file, objects, splitter, is_gzip=is_gzip)]

    assert await read(packed, is_gzip=True) == await read(b"\n".join(lines), is_gzip=False) == lines
    for broken, why in ((packed[:-9], "not a complete gzip file"), (b"plain text", "not a gzip file")):
        with pytest.raises(InputBroken, match=why):
            await read(broken, is_gzip=True)


def test_a_spool_goes_on_after_the_answers_that_it_has_in_whole(tmp_path: Path) -> None:
    folder = JobFolder(Files(tmp_path), tmp_path / "job")
    assert folder.read_inputs() is None
    folder.write_inputs([InputFile(uri="s3://b/k", output_uri="s3://b/o", num_bytes=1, etag="e")])
    assert JobFolder(Files(tmp_path), tmp_path / "job").read_inputs() == [
        InputFile(uri="s3://b/k", output_uri="s3://b/o", num_bytes=1, etag="e")
    ]
    spool = folder.spool(0)
    for request, answer in ((2, b"two"), (0, b""), (1, b"one\n")):
        spool.add(request, answer)
    data, index = tmp_path / "job" / "0.data", tmp_path / "job" / "0.index"
    whole_data, whole_index = data.read_bytes(), index.read_text()
    for torn_data, torn_index, kept in (
        (whole_data, whole_index, {0, 1, 2}),
        (whole_data, whole_index[:-1], {0, 2}),
        (whole_data[:-1], whole_index, {0, 2}),
        (whole_data + b"more", whole_index, {0, 1, 2}),
        (whole_data, "", set()),
    ):
        data.write_bytes(torn_data)
        index.write_text(torn_index)
        torn = folder.spool(0)
        assert {request for request in range(3) if request in torn} == kept
        for request, answer in ((0, b""), (1, b"one\n"), (2, b"two")):
            if request not in torn:
                torn.add(request, answer)
        with folder.spool(0).assembled(by_line=True) as output:
            output.seek(0)
            assert output.read() == b"\none\ntwo\n"
        with torn.assembled(by_line=False) as output:
            output.seek(0)
            assert output.read() == b"one\ntwo"
    spool.end("why")
    folder.spool(1).end("")
    assert folder.ended() == {0: "why", 1: ""}
    assert not data.exists()
    folder.remove()
    assert not (tmp_path / "job").exists()
