"""Requests of clients, texts of models, and messages between processes."""

import gzip
import json
import struct

from tests.cves.attack import Attack
from tests.cves.model_files import CODE, SYSTEM


def _chat(**fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}]} | fields).encode()


def _part(kind: str, url: str) -> bytes:
    return _chat(messages=[{"role": "user", "content": [{"type": kind, kind: {"url": url}}]}])


def _schema(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def _npy(descr: str, content: bytes) -> bytes:
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': (1,), }}".encode()
    head += b" " * (-(10 + len(head) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + content


def _upload(name: str) -> bytes:
    return b'--x\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\na\r\n--x--\r\n' % name.encode()


def _frame(head: bytes) -> bytes:
    """A message of a child; source: `headrace_handler.frames`."""
    return struct.pack("!IBI", 5 + len(head), 1, len(head)) + head


def _tagged_call(value: str) -> bytes:
    call = f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"
    return b"\0" + call.encode()


_CHATS = (
    ("CVE-2025-61620", "vLLM", "template of a client", lambda: _chat(chat_template=CODE), "may not run templates"),
    (
        *("CVE-2025-62426", "vLLM", "values that replace arguments of the renderer"),
        lambda: _chat(chat_template_kwargs={"chat_template": CODE, "tokenize": True, "messages": []}),
    ),
    ("CVE-2026-34756", "vLLM", "2,147,483,648 choices", lambda: _chat(n=2**31), "Invalid 'n'"),
    (
        *("CVE-2026-22773", "vLLM", "image that ends the engine"),
        *(lambda: _part("image_url", "data:image/png;base64,iVBOR"), "text only"),
    ),
    (
        *("CVE-2026-34755, CVE-2026-5497", "vLLM", "thousands of frames"),
        *(lambda: _part("video_url", "data:video/jpeg;base64," + "a," * 9999), "text only"),
    ),
    (
        *("CVE-2026-22778", "vLLM", "video that overflows its decoder"),
        *(lambda: _part("video_url", "https://evil.example/x.mp4"), "text only"),
    ),
    (
        *("CVE-2025-6242, CVE-2026-24779, CVE-2026-25960", "vLLM", "address of an internal network"),
        *(lambda: _part("image_url", "http://allowed.example\\@169.254.169.254/"), "text only"),
    ),
)
_TEXTS = (
    (
        "CVE-2025-48887",
        "vLLM",
        "calls on which a regex backtracks",
        lambda: b"\0<|tool_call_start|>[f(" + b"a=[" * 2000,
    ),
    ("CVE-2025-9141", "vLLM", "arguments that are evaluated", lambda: _tagged_call("__import__('os').system('true')")),
)

ATTACKS = (
    *(Attack(ids, product, name, "openai-chat", *rest) for ids, product, name, *rest in _CHATS),
    *(Attack(ids, product, name, "answer-text", make) for ids, product, name, make in _TEXTS),
    Attack(
        *("CVE-2025-62164", "vLLM", "embeddings as a pickle", "openai-completions"),
        *(lambda: _chat(prompt="a", prompt_embeds="gASV"), "'prompt_embeds' is not supported"),
    ),
    Attack(
        *("CVE-2025-48942", "vLLM", "type that JSON schema does not have", "grammar-json-schema"),
        *(lambda: _schema(type="something"), "expected one of null"),
    ),
    Attack(
        *("CVE-2025-48943", "vLLM", "regex that does not compile", "grammar-regex"),
        *(lambda: b"([", "unclosed character class"),
    ),
    Attack(
        *("CVE-2025-48944", "vLLM", "pattern that does not compile", "grammar-json-schema"),
        *(lambda: _schema(type="string", pattern="(["), "unclosed character class"),
    ),
    Attack(
        *("CVE-2025-57809", "XGrammar", "grammar that refers to itself without end", "grammar-ebnf"),
        *(lambda: b"root ::= root", "no text at all"),
    ),
    Attack(
        *("CVE-2026-2069, CVE-2026-25048", "llama.cpp, XGrammar", "brackets inside each other", "grammar-ebnf"),
        *(lambda: b"root ::= " + b"(" * 20_000 + b'"a"' + b")" * 20_000, "nest"),
    ),
    Attack(
        *("CVE-2026-21869", "llama.cpp", "tokens to discard below zero", "infill"),
        lambda: json.dumps({"input_prefix": "a", "input_suffix": "", "n_discard": -9}).encode(),
    ),
    Attack(
        "CVE-2026-24486", "python-multipart", "file name that is a path", "upload-form", lambda: _upload("../../evil")
    ),
    Attack(
        *("CVE-2019-6446, CVE-2024-34072", "NumPy, SageMaker SDK", "array of objects", "npy"),
        *(lambda: _npy("|O", SYSTEM), "Pickles and arrays of objects run code"),
    ),
    Attack(
        *("CVE-2024-11041, CVE-2025-32444, CVE-2026-3059, CVE-2026-3060, CVE-2026-26220", "vLLM, SGLang, LightLLM"),
        *("pickle between processes", "handler-frames", lambda: _frame(SYSTEM), "."),
    ),
    Attack(
        *("CVE-2024-11041, CVE-2025-32444, CVE-2026-3059, CVE-2026-3060, CVE-2026-26220", "vLLM, SGLang, LightLLM"),
        *("pickle between processes", "member-question", lambda: b"\n\n" + SYSTEM),
    ),
    Attack(
        *("CVE-2024-12886", "Ollama", "gzip bomb", "gzip-body"),
        *(lambda: gzip.compress(bytes(8 << 20)), "The decompressed body has more than"),
    ),
    Attack(
        *("CVE-2024-37032", "Ollama", "digest that is a path", "registry-path"),
        *(lambda: b"/v2/a/blobs/sha256:../../../etc/passwd", "no route"),
    ),
    Attack(
        *("CVE-2024-35198", "TorchServe", "path around the allowed addresses", "torchserve-models"),
        *(lambda: b'{"url": "file:///allowed/../x.mar"}', "Relative path is not allowed"),
    ),
)
