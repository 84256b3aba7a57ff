"""Bodies of clients that would run code, start a program or fill the memory when a stand-in decodes them."""

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace_handler.arrays import npy_to_numpy, npz_to_arrays, npz_to_sparse
from headrace_handler.client_data import InvalidBody, check_parameters, decode_text, open_image, parameter
from headrace_handler.standins.djl_python.np_util import from_nd_list
from tests.headrace_handler.djl_models import LoadModel, item, predict
from tests.headrace_handler.djl_models import load_model as load_model  # noqa: PLC0414 - a fixture
from tests.headrace_handler.sagemaker_models import JSON, NPY, invoke, load_program
from tests.headrace_handler.sagemaker_models import sagemaker_imports as sagemaker_imports  # noqa: PLC0414 - a fixture

NPZ = "application/x-npz"
ECHO = """
    def model_fn(model_dir): return None
    def predict_fn(data, model): return [str(data)]
"""
HUGGINGFACE = """
    def model_fn(model_dir): return lambda data, **parameters: [str(data)]
"""
PROFILES = {"generic": ECHO, "pytorch": ECHO, "sklearn": ECHO, "xgboost": ECHO, "huggingface": HUGGINGFACE}
MARK = "ran"


class Runs:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def header_of(text: str, data: bytes = b"", *, version: int = 1) -> bytes:
    size = 2 if version == 1 else 4
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(size, "little") + text.encode() + data


def described(dtype: str, shape: str, data: bytes = b"") -> bytes:
    return header_of(f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}", data)


def npz(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def pickles(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Return bodies that run code if they are unpickled, with the types under which they are sent."""
    pickled = pickle.dumps(Runs(folder / MARK))
    objects = npy(np.array([Runs(folder / MARK)], dtype=object))
    return {
        "an array of objects": (NPY, objects),
        "a pickle": (NPY, pickled),
        "objects in an npz": (NPY, npz({"a": objects})),
        "objects in the npz of a sparse matrix": (NPZ, npz({"format": objects, "data": objects})),
        "objects in a structured array": (NPY, npy(np.array([(1, Runs(folder / MARK))], dtype="i4,O"))),
        "a pickle by its own type": ("application/x-pickle", pickled),
    }


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.usefixtures("sagemaker_imports")
def test_no_body_of_a_client_is_unpickled_by_the_images_of_sagemaker(tmp_path: Path, profile: str) -> None:
    contract = load_program(tmp_path, PROFILES[profile], profile)
    for name, (content_type, body) in pickles(tmp_path).items():
        reply = invoke(contract, body, content_type)
        assert reply.status == 400 or (content_type != NPY or profile == "xgboost"), (name, reply.body)
        assert reply.status >= 400, name
        assert not (tmp_path / MARK).exists(), name


@pytest.mark.usefixtures("sagemaker_imports")
def test_the_owner_of_an_endpoint_may_accept_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ALLOW_CLIENT_PICKLES", "true")
    reply = invoke(load_program(tmp_path, ECHO), npy(np.array([{"a": 1}], dtype=object)), NPY)
    assert (reply.status, reply.json) == (200, ["[{'a': 1}]"])


def test_the_handlers_of_djl_answer_such_bodies_with_400(load_model: LoadModel, tmp_path: Path) -> None:
    contract = load_model("""
        from djl_python import Output
        def handle(inputs):
            return None if inputs.is_empty() else Output().add(str(inputs.get_data()))
    """)
    objects = npz({"a": npy(np.array([Runs(tmp_path / MARK)], dtype=object))})
    for content_type, body in (("tensor/npz", objects), ("tensor/ndlist", objects), ("tensor/ndlist", nd_list("O"))):
        reply = predict(contract, item(body, {"Content-Type": content_type}))
        assert (reply.status, reply.json["code"]) == (400, 400), reply.body
    assert not (tmp_path / MARK).exists()


def nd_list(dtype: str, shape: tuple[int, ...] = (1,), data: bytes = bytes(8)) -> bytes:
    """Return an NDList of one array; bytes of the type `O` would be taken for addresses of objects."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    head = struct.pack(">i", 1) + text("NDAR") + struct.pack(">i", 3) + b"\0" + text("default") + text(dtype)
    sizes = struct.pack(f">i{len(shape)}q", len(shape), *shape)
    return head + sizes + struct.pack(">i", 0) + b"<" + struct.pack(">i", len(data)) + data


BOMBS: dict[str, tuple[Callable[[bytes], Any], bytes | Callable[[], bytes]]] = {
    "a shape beyond the memory": (npy_to_numpy, described("'<f8'", f"({2**60},)")),
    "a shape of elements without bytes": (npy_to_numpy, described("'|V0'", f"({2**40},)")),
    "text without bytes": (npy_to_numpy, described("'<U0'", f"({2**40},)")),
    "rows without columns": (npy_to_numpy, described("'<f8'", f"({2**40}, 0)")),
    "fields without bytes": (npy_to_numpy, described(f"[('a', '<i1'), ('b', '|V0', ({2**30},))]", "(1,)", b"1")),
    "a shape below nothing": (npy_to_numpy, described("'<f8'", "(-1,)")),
    "a long header": (npy_to_numpy, header_of("{'a':" + "[1]," * 3000 + "}")),
    "a long header of version 3": (npy_to_numpy, header_of("1+" * 100_000, version=3)),
    "a deep header": (npy_to_numpy, header_of("-" * 9000 + "1")),
    "brackets": (npy_to_numpy, header_of("[" * 9000)),
    "a number of many digits": (npy_to_numpy, header_of("9" * 9000)),
    "a zip bomb": (npz_to_arrays, lambda: npz({"a": bytes(257 << 20)})),
    "many members": (npz_to_arrays, npz({str(number): b"" for number in range(1001)}, zipfile.ZIP_STORED)),
    "another compression": (npz_to_arrays, npz({"a": npy(np.arange(3))}, zipfile.ZIP_LZMA)),
    "half a zip": (npz_to_arrays, npz({"a": npy(np.arange(3))})[:-30]),
    "indices beyond a sparse matrix": (
        npz_to_sparse,
        npz(
            {
                "format": npy(np.array(b"csr")),
                "shape": npy(np.array([1, 2])),
                "data": npy(np.ones(1)),
                "indices": npy(np.array([1 << 30])),
                "indptr": npy(np.array([0, 1])),
            }
        ),
    ),
    "an NDList of objects": (from_nd_list, nd_list("object")),
    "an NDList of records with objects": (from_nd_list, nd_list("i4,O", data=bytes(16))),
    "an NDList without bytes": (from_nd_list, nd_list("float64", (1 << 40, 0), b"")),
    "an NDList of a shape beyond its bytes": (from_nd_list, nd_list("float64", (1 << 60,))),
}


@pytest.mark.parametrize("name", BOMBS)
def test_arrays_that_describe_more_than_they_hold_are_refused(name: str) -> None:
    read, body = BOMBS[name]
    if read is npz_to_sparse:
        pytest.importorskip("scipy.sparse")
    with pytest.raises(InvalidBody):
        read(body() if callable(body) else body)


def test_ordinary_arrays_are_read() -> None:
    for array in (np.arange(3), np.zeros((0, 5)), np.array(["a", ""]), np.zeros((2, 2), "f4,i8"), np.array(1.5)):
        np.testing.assert_array_equal(npy_to_numpy(bytearray(npy(array))), array)


def test_no_image_starts_another_program() -> None:
    pillow = pytest.importorskip("PIL")
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(pillow.UnidentifiedImageError):
        open_image(postscript)


@pytest.mark.usefixtures("sagemaker_imports")
def test_parameters_that_run_code_of_a_repository_are_refused(tmp_path: Path) -> None:
    contract = load_program(tmp_path, HUGGINGFACE, "huggingface")
    for name in ("custom_generate", "trust_remote_code"):
        reply = invoke(contract, b'{"inputs": "a", "parameters": {"%s": "x/y"}}' % name.encode(), JSON)
        assert (reply.status, name in reply.json["message"]) == (400, True)
    check_parameters({"max_new_tokens": 5})


ACCENT, KANA = "é,1", "あ,1"
CHARSETS = [
    ("text/csv", ACCENT.encode(), ACCENT),
    ("text/csv", b"\xef\xbb\xbf" + ACCENT.encode(), ACCENT),
    ("text/csv; charset=iso-8859-1", ACCENT.encode("latin-1"), ACCENT),
    ("text/csv;Charset=ISO_8859-1", ACCENT.encode("latin-1"), ACCENT),
    ('text/csv; header=present; charset="windows-1252"', "€,1".encode("cp1252"), "€,1"),
    ("text/csv; charset=utf-16", KANA.encode("utf-16"), KANA),
    ("text/csv; charset=utf-16be", KANA.encode("utf-16-be"), KANA),
    ("text/csv; charset=shift_jis", KANA.encode("shift_jis"), KANA),
    ("text/csv; charset=euc-kr", "가,1".encode("euc-kr"), "가,1"),
    ("text/csv; charset=koi8-r", "я,1".encode("koi8-r"), "я,1"),
]
REFUSED = [
    ("text/csv; charset=nope", b"1", 415),
    ("text/csv; charset=iso-8859-99", b"1", 415),
    ("text/csv; charset=zlib", b"x\x9c", 415),
    ("text/csv; charset=punycode", b"1", 415),
    ("text/csv; charset=unicode_escape", b"1", 415),
    ("text/csv; charset=../../x", b"1", 415),
    ("text/csv", ACCENT.encode("latin-1"), 400),
    ("application/json; charset=utf-8", b"\xff", 400),
    ("text/csv; charset=ascii", ACCENT.encode(), 400),
    ("text/csv" + ";" * 40, b"1", 400),
]


@pytest.mark.parametrize(("content_type", "data", "text"), CHARSETS)
def test_text_is_read_in_the_charset_of_its_type(content_type: str, data: bytes, text: str) -> None:
    assert decode_text(bytearray(data), content_type) == text


@pytest.mark.parametrize("profile", ["generic", "pytorch", "sklearn", "xgboost", "huggingface"])
@pytest.mark.usefixtures("sagemaker_imports")
def test_no_charset_is_an_error_of_the_server(tmp_path: Path, profile: str) -> None:
    code = """
        def model_fn(model_dir): return None
        def input_fn(data, content_type): return data
        def predict_fn(data, model): return data
        def output_fn(prediction, accept): return repr(prediction)
    """
    contract = load_program(tmp_path, code, profile)
    for content_type, data, text in CHARSETS:
        assert repr(text).encode() in invoke(contract, data, content_type).body
        reply = invoke(contract, f'["{text}"]'.encode(), JSON)
        assert reply.status == 200
    for content_type, data, status in REFUSED:
        assert invoke(contract, data, content_type).status == status, content_type


def test_handlers_of_djl_read_text_in_its_charset(load_model: LoadModel) -> None:
    contract = load_model("""
        from djl_python import Output
        def handle(inputs):
            return None if inputs.is_empty() else Output().add(repr(inputs.get_as_string()))
    """)
    for content_type, data, text in CHARSETS:
        assert predict(contract, item(data, {"content-type": content_type})).body.decode() == repr(text)
    for content_type, data, status in REFUSED:
        assert predict(contract, item(data, {"content-type": content_type})).status == status


@pytest.mark.parametrize(
    ("value", "name", "found"),
    [
        ("multipart/form-data; boundary=B", "boundary", "B"),
        ('multipart/form-data;BOUNDARY = "a;b=\\"c" ; x=1', "boundary", 'a;b="c'),
        ('form-data; filename="C:\\\\x;name=y"; name="a"', "name", "a"),
        ('form-data; name="not closed', "name", "not closed"),
        ('form-data; name="', "name", ""),
        ('form-data; name="ends with \\', "name", "ends with \\"),
        ("form-data; name; name=b", "name", ""),
        ("form-data", "name", ""),
        ("", "name", ""),
    ],
)
def test_parameters_of_headers(value: str, name: str, found: str) -> None:
    assert parameter(value, name) == found


def test_parameters_are_bounded() -> None:
    for value in (
        'x; a="' + ";" * 1_000_000,
        'x; a="' + '\\"' * 500_000,
        "x;" + " " * 1_000_000,
        "x; a=" + "=" * 1_000_000,
    ):
        assert parameter(value, "name") == ""
    with pytest.raises(ValueError, match="more than 32 parameters"):
        parameter("x" + ";" * 1_000_000, "name")
