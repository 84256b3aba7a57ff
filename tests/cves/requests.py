"""Requests of clients, texts of models, and messages between processes."""

import gzip
import json
import struct

from tests.cves.attack import Attack
from tests.cves.model_files import CODE, SYSTEM, zipped


def _chat(**fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}]} | fields).encode()


def _raw(**fields: str) -> bytes:
    """A chat with fields in JSON."""
    return _chat()[:-1] + "".join(f', "{name}": {value}' for name, value in fields.items()).encode() + b"}"


def _said(text: str) -> bytes:
    return _chat(messages=[{"role": "user", "content": text}])


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
        *("CVE-2025-6242, CVE-2026-24779, CVE-2026-25960, CVE-2026-33626", "vLLM, LMDeploy"),
        "address of an internal network",
        *(lambda: _part("image_url", "http://allowed.example\\@169.254.169.254/"), "text only"),
    ),
)
_PARAMETERS = (
    ("CVE-2026-54235", "vLLM", "infinite temperature", lambda: _raw(temperature="1e999"), "number out of range"),
    ("CVE-2020-10735", "Python", "number of 100,000 digits", lambda: _raw(max_tokens="9" * 100_000), "out of range"),
    (
        "CVE-2024-27454",
        "orjson",
        "lists inside each other",
        lambda: _raw(x="[" * 99_999 + "]" * 99_999),
        "expected at most",
    ),
    (
        "CVE-2026-44222",
        "vLLM",
        "place of an image without one",
        lambda: _said("<|vision_start|><|image_pad|><|vision_end|>"),
    ),
    ("CVE-2025-46560", "vLLM", "20,000 places of images", lambda: _said("<|image_1|>" * 20_000)),
    ("CVE-2024-6587", "LiteLLM", "address of another server", lambda: _chat(api_base="http://169.254.169.254/")),
    (
        *("CVE-2026-7304", "SGLang", "function of a client as a pickle"),
        *(lambda: _chat(custom_logit_processor="gASV", logits_processors=["os.system"]), "are not supported"),
    ),
)
_PICKLES = (
    "CVE-2024-11041, CVE-2025-32444, CVE-2026-3059, CVE-2026-3060, CVE-2026-26220, CVE-2024-50050, CVE-2025-30165, "
    "CVE-2025-23254"
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
    *(Attack(ids, product, name, "openai-chat", *rest) for ids, product, name, *rest in _PARAMETERS),
    Attack(
        *("CVE-2024-8768", "vLLM", "empty prompt", "openai-completions"),
        *(lambda: _schema(model="m", prompt=""), "empty string"),
    ),
    Attack(
        *("CVE-2024-8939", "vLLM", "2,147,483,648 answers to choose from", "openai-completions"),
        *(lambda: _schema(model="m", prompt="a", best_of=2**31), "Invalid 'best_of'"),
    ),
    Attack(
        *("CVE-2026-0599", "TGI", "image in a text", "tgi"),
        lambda: _schema(inputs="![](http://169.254.169.254/latest/meta-data)"),
    ),
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
        *("found by this search, 2026", "llguidance", "expression of 50,000 repetitions", "grammar-json-schema"),
        *(lambda: _schema(pattern=".*" * 50_000), "with at most 5000"),
    ),
    Attack("CVE-2026-55574", "vLLM", "regex with endless states", "grammar-regex", lambda: b"(a|b)*a(a|b){200}(a+)+b"),
    Attack(
        *("CVE-2025-58446", "XGrammar", "5,000 alternatives", "grammar-json-schema"),
        lambda: _schema(enum=[f"{'x' * 50}{number}" for number in range(5000)]),
    ),
    Attack(
        *("CVE-2025-48944", "vLLM", "pattern that does not compile", "grammar-json-schema"),
        *(lambda: _schema(type="string", pattern="(["), "unclosed character class"),
    ),
    Attack(
        *("llama.cpp issue 25284", "llama.cpp", "repetition of nothing", "grammar-json-schema"),
        *(lambda: _schema(type="string", pattern="(?<=x)*"), "look-around"),
    ),
    Attack(
        *("llama.cpp issue 25283", "llama.cpp", "groups inside each other", "grammar-json-schema"),
        *(lambda: _schema(type="string", pattern="(" * 20_000 + "a" + ")" * 20_000), "regex parse error"),
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
        "CVE-2026-24486, CVE-2026-7302, CVE-2024-6707",
        *("python-multipart, SGLang, Open WebUI", "file name that is a path", "upload-form"),
        lambda: _upload("../../evil"),
    ),
    Attack(
        *("CVE-2019-6446, CVE-2024-34072", "NumPy, SageMaker SDK", "array of objects", "npy"),
        *(lambda: _npy("|O", SYSTEM), "Pickles and arrays of objects run code"),
    ),
    Attack(
        *("CVE-2019-6446", "NumPy", "array of objects in a zip file", "npz"),
        *(lambda: zipped(("a.npy", _npy("|O", SYSTEM))), "Pickles and arrays of objects run code"),
    ),
    Attack(
        *(_PICKLES, "vLLM, SGLang, LightLLM, Llama Stack, TensorRT-LLM", "pickle between processes"),
        *("handler-frames", lambda: _frame(SYSTEM), "."),
    ),
    Attack(
        *(_PICKLES, "vLLM, SGLang, LightLLM, Llama Stack, TensorRT-LLM", "pickle between processes"),
        *("member-question", lambda: b"\n\n" + SYSTEM),
    ),
    Attack(
        *("CVE-2024-12886, CVE-2025-69223", "Ollama, aiohttp", "gzip bomb", "gzip-body"),
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
    Attack(
        *("CVE-2026-12243", "NLTK", "path with encoded dots", "torchserve-models"),
        *(lambda: b'{"url": "file:///allowed/%2e%2E/x.mar"}', "Relative path is not allowed"),
    ),
)
