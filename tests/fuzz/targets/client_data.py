"""Bodies and types that clients send to models' own code, as the stand-ins of the servers' packages decode them."""

import io

import numpy as np

from headrace_handler.arrays import npy_to_numpy, npz_to_arrays
from headrace_handler.client_data import InvalidBody, decode_text, parameter
from headrace_handler.contracts.sagemaker import recordio
from headrace_handler.standins.djl_python.np_util import from_nd_list, to_nd_list
from tests.fuzz.target import Target

_HEADER_WORDS = (
    b"; ",
    b";" * 5000,
    b"charset=",
    b"boundary=",
    b'="',
    b'"',
    b"\\",
    b'\\"' * 2000,
    b" " * 5000,
    b"=" * 5000,
)
_DTYPES = (
    b"|O",
    b"<f8",
    b"|V0",
    b"<U0",
    b"(",
    b"{",
    b"'shape'",
    b"'descr'",
    b"9223372036854775807",
    b"-1",
    b"-" * 5000,
)


def _parameter(data):
    """The parameters of a Content-Type."""
    text = data.decode("latin-1")
    for name in ("charset", "boundary", "name"):
        assert len(parameter(text, name)) <= len(text)


def _text(data):
    """The first line is the Content-Type, the rest the text."""
    kind, _, body = data.partition(b"\n")
    decode_text(body, kind.decode("latin-1"))


def _npy(data):
    assert not npy_to_numpy(data).dtype.hasobject


def _npz(data):
    assert not any(array.dtype.hasobject for array in npz_to_arrays(data).values())


def _nd_list(data):
    assert not any(array.dtype.hasobject for array in from_nd_list(data))


def _records(data):
    """Records of SageMaker's protobuf, which readers of XGBoost's container put into matrices."""
    for features, labels in recordio.read_records(data):
        for tensor in (*features.values(), *labels.values()):
            assert len(tensor.values) <= 8 * len(data)
            assert tensor.keys is None or all(key < 1 << 31 for key in tensor.keys)


def _record_seeds():
    sparse = recordio.Tensor(np.ones(2, np.float32), [1, 7], 10)
    record = recordio.write_record({"values": sparse}, {"values": recordio.Tensor(np.array([-3], np.int32))})
    return {"dense": recordio.write_matrix(np.ones((2, 3)), np.zeros(2)), "sparse": record}


def _saved(save, **arrays):
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return buffer.getvalue()


TARGETS = (
    Target(
        "content-type",
        _parameter,
        refusals=(ValueError,),
        make_seeds=lambda: {
            "csv": b'text/csv; header=present; charset="utf-8"',
            "form": b"multipart/form-data; boundary=B",
        },
        words=_HEADER_WORDS,
        limit_s=0.2,
    ),
    Target(
        "text-body",
        _text,
        refusals=(InvalidBody,),
        make_seeds=lambda: {
            "latin": b"text/csv; charset=iso-8859-1\n\xe9,1",
            "kana": b'application/json; charset=shift_jis\n["\x82\xa0"]',
        },
        words=(
            *_HEADER_WORDS,
            b"utf-16",
            b"utf-7",
            b"idna",
            b"punycode",
            b"zlib",
            b"iso-2022-jp",
            b"gb18030",
            b"\x1b$B",
        ),
        limit_s=0.2,
    ),
    Target(
        "npy",
        _npy,
        refusals=(InvalidBody,),
        make_seeds=lambda: {
            "matrix": _saved(np.save, arr=np.ones((2, 3))),
            "fields": _saved(np.save, arr=np.zeros(2, "i4,(2,)f8")),
        },
        words=_DTYPES,
        suite_cases=300,
    ),
    Target(
        "npz",
        _npz,
        refusals=(InvalidBody,),
        make_seeds=lambda: {"two": _saved(np.savez_compressed, a=np.arange(3), b=np.zeros(2000))},
        words=(b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", *_DTYPES),
        suite_cases=300,
    ),
    Target(
        "nd-list",
        _nd_list,
        refusals=(ValueError, AssertionError),
        make_seeds=lambda: {"two": bytes(to_nd_list([np.arange(3), np.ones((2, 2))]))},
        words=(b"\x00\x06object", b"\x00\x01O", b"\x00\x05int32", b"NDAR"),
        suite_cases=300,
    ),
    Target(
        "protobuf-records",
        _records,
        refusals=(ValueError,),
        make_seeds=_record_seeds,
        words=(b"\x0a\x23\xd7\xce", b"\xff" * 9 + b"\x01", b"\x80" * 12, b"\x3a", b"\x12", b"\x0a"),
        suite_cases=400,
    ),
)
