"""Heads, forms and bodies of HTTP, credentials, and answers of other servers."""

from functools import partial

from tests.cves.attack import Attack

_HEAD = b"POST /health HTTP/1.1\r\nHost: a\r\n"
_CHUNKED = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
_CHUNKED_ANSWER = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_FORM = b"multipart/form-data; boundary=B\n"
_FIELDS = b"application/x-www-form-urlencoded\n"
_PART = b'--B\r\nContent-Disposition: form-data; name="a"\r\n'
_KEY = (
    b"GET /\nhost: a\nx-amz-date: 20260101T000000Z\n"
    b"authorization: AWS4-HMAC-SHA256 Credential=' OR 1=1--/20260101/us-east-1/sagemaker/aws4_request, "
    b"SignedHeaders=host, Signature=00\n\n"
)
_UNSIGNED = (
    b"PUT /b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=A/20260101/us-east-1/s3/aws4_request"
    b"&X-Amz-Date=20260101T000000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=\n"
    b"x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\nhost: a\n\n"
)

_REQUESTS = (
    (
        "CVE-2025-23310, CVE-2025-69229",
        "Triton, aiohttp",
        "100,000 chunks of a byte",
        partial(bytes.join, b"", [_CHUNKED, b"1\r\na\r\n" * 100_000]),
    ),
    ("CVE-2025-43859", "h11", "chunk without its end", lambda: _CHUNKED + b"5\r\nabcdeXX0\r\n\r\n"),
    (
        "CVE-2024-52304",
        "aiohttp",
        "line in an extension of a chunk",
        lambda: _CHUNKED + b"5;a\nb\r\nabcde\r\n0\r\n\r\n",
    ),
    (
        *("CVE-2025-53643", "aiohttp", "request behind trailers"),
        lambda: _CHUNKED + b"0\r\nContent-Length: 5\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    (
        "CVE-2024-1135",
        "Gunicorn",
        "two transfer codings",
        lambda: _HEAD + b"Transfer-Encoding: chunked,identity\r\n\r\n",
    ),
    ("CVE-2026-48710", "Starlette", "path in a host name", lambda: b"GET /a HTTP/1.1\r\nHost: a/health?\r\n\r\n"),
    ("CVE-2026-34525", "aiohttp", "two host names", lambda: _HEAD + b"Host: b\r\n\r\n"),
    ("CVE-2026-48817", "Starlette", "method that is an attribute", lambda: b"__INIT__ / HTTP/1.1\r\nHost: a\r\n\r\n"),
    (
        "CVE-2024-7592",
        "Python",
        "cookie of backslashes",
        lambda: _HEAD + b'Cookie: a="' + b"\\" * 15_000 + b'"\r\n\r\n',
    ),
    ("CVE-2025-67725", "Tornado", "header that repeats itself", lambda: _HEAD + b"X: a\r\n" * 5000 + b"\r\n"),
    ("CVE-2025-48956", "vLLM", "header of a megabyte", lambda: _HEAD + b"X: " + b"a" * 1_000_000 + b"\r\n\r\n"),
    ("CVE-2026-22815", "aiohttp", "trailers without end", lambda: _CHUNKED + b"0\r\n" + b"X: a\r\n" * 100_000),
)
_FORMS = (
    (
        "CVE-2024-8984, CVE-2024-8966",
        "LiteLLM, Gradio",
        "boundary of dashes",
        lambda: _FORM[:-1] + b"-" * 99_999 + b"\n",
        "100000 char",
    ),
    (
        "CVE-2024-53981, CVE-2026-40347",
        "python-multipart",
        "a megabyte around the parts",
        lambda: _FORM + b"\r\n" * 500_000 + b"--B--" + b"x" * 1_000_000,
    ),
    (
        "CVE-2023-30798",
        "Starlette",
        "20,000 parts",
        lambda: _FORM + (_PART + b"\r\n\r\n") * 20_000 + b"--B--",
        "too many fields",
    ),
    (
        "CVE-2026-42561",
        "python-multipart",
        "100,000 headers of a part",
        lambda: _FORM + _PART + b"X: y\r\n" * 100_000 + b"\r\na\r\n--B--",
        ".",
    ),
    ("CVE-2026-54283", "Starlette", "200,000 fields", lambda: _FIELDS + b"a=1&" * 200_000, "too many fields"),
    ("CVE-2026-53539", "python-multipart", "fields with semicolons", lambda: _FIELDS + b"a=1;" * 100_000),
    (
        "CVE-2024-24762",
        "FastAPI",
        "option of backslashes",
        lambda: b'multipart/form-data; boundary=B; a="' + b"\\" * 99_999 + b"\n",
        ".",
    ),
)

ATTACKS = (
    *(Attack(ids, product, name, "http-request", make) for ids, product, name, make in _REQUESTS),
    *(Attack(ids, product, name, "form", *rest) for ids, product, name, *rest in _FORMS),
    Attack(
        *("CVE-2025-13836", "Python", "answer of four exabytes", "http-response"),
        *(lambda: b"HTTP/1.1 200 OK\r\nContent-Length: 4611686018427387904\r\n\r\na", "the connection closed"),
    ),
    Attack(
        *("CVE-2026-22815", "aiohttp", "trailer without end", "http-response"),
        *(lambda: _CHUNKED_ANSWER + b"0\r\nX: " + b"a" * 1_000_000, "framing of the server's response"),
    ),
    Attack(
        *("CVE-2023-39326", "Go", "extension of a chunk without end", "http-response"),
        *(lambda: _CHUNKED_ANSWER + b"1;" + b"a" * 1_000_000, "framing of the server's response"),
    ),
    Attack(
        *("found by this search, 2026", "uvicorn", "status that HTTP does not have", "http-response"),
        *(lambda: b"HTTP/1.1 999 Odd\r\nContent-Length: 1\r\n\r\na", "status 999"),
    ),
    Attack("CVE-2026-42208", "LiteLLM", "key that is SQL", "signature", lambda: _KEY, "security token"),
    Attack(
        "CVE-2025-31489, CVE-2026-41145",
        "MinIO",
        "upload without a signature",
        "signature",
        lambda: _UNSIGNED,
        "Signature",
    ),
    Attack(
        *("CVE-2022-45061", "Python", "domain that takes long to encode", "text-body"),
        *(lambda: b"text/csv; charset=idna\n" + b"a" * 50_000, "expected a known one"),
    ),
    Attack(
        *("CVE-2025-4516", "Python", "escapes that use freed memory", "text-body"),
        *(lambda: b"text/csv; charset=unicode_escape\n\\N{" + b"a\\xff" * 2000, "expected a known one"),
    ),
    Attack(
        *("CVE-2026-34753", "vLLM", "address in a line of a batch", "batch-lines"),
        lambda: b'{"custom_id": "a", "method": "POST", "url": "http://169.254.169.254/", "body": {"model": "m"}}',
    ),
    Attack(
        *("CVE-2025-15379", "MLflow", "command in the requirements", "requirements"),
        lambda: b"numpy; rm -rf /\n$(touch evil)\n--install-option='x'\n",
    ),
)
