"""Files of models: GGUF, templates, weights, vocabularies, configs and archives."""

import base64
import gzip
import io
import json
import struct
import tarfile
import zipfile
from functools import partial

from safetensors.numpy import save

from headrace.inference.models.families.registry import from_config
from headrace.inference.models.fields import Fields
from headrace.inference.models.places import gguf_name
from tests.cves.attack import Attack
from tests.fuzz.targets.archives import scene
from tests.inference.models.adapter_files import CONFIG, random_tensors
from tests.inference.models.model_files import (
    TINY_LLAMA,
    byte_level_tokenizer,
    gguf_metadata,
    gguf_vocabulary,
    random_weights,
    write_gguf,
)
from tests.serving.artifacts.archive_maker import archive, file, folder, header, link

_NUM_TENSORS_AT, _NUM_VALUES_AT = 8, 16
_TEXT, _ARRAY, _UINT64 = 8, 9, 10
_MANIFEST = ("MAR-INF/MANIFEST.json", b"{}")
_SIZE = struct.Struct("<Q")
SYSTEM = b"cposix\nsystem\n(Vtrue\ntR."
"""A pickle that calls `os.system`."""
CODE = "{{ cycler.__init__.__globals__.os.system('true') }}"
"""A template that does."""


def _gguf(**metadata: object) -> bytes:
    """A small model with other metadata; two underscores are a dot."""
    _, spec = from_config(Fields(TINY_LLAMA, ""))
    values = gguf_metadata(spec) | gguf_vocabulary(byte_level_tokenizer())
    values |= {key.replace("__", "."): value for key, value in metadata.items()}
    tensors = {gguf_name(name): weights for name, weights in random_weights(spec).items()}
    return write_gguf(scene("cves") / "m.gguf", values, tensors).read_bytes()


def _tensor(**changes: int | tuple[int, ...]) -> bytes:
    """A small model whose first tensor has other dimensions, number of them, or offset."""
    content, name = _gguf(), b"token_embd.weight"
    at = content.index(name) + len(name)
    (count,) = struct.unpack_from("<I", content, at)
    dims = changes.get("dims", struct.unpack_from(f"<{count}Q", content, at + 4))
    kind, offset = struct.unpack_from("<IQ", content, at + 4 + 8 * count)
    info = struct.pack(f"<I{len(dims)}Q", changes.get("num_dims", len(dims)), *dims)
    info += struct.pack("<IQ", kind, changes.get("offset", offset))
    return content[:at] + info + content[at + 16 + 8 * count :]


def _count(at: int) -> bytes:
    content = _gguf()
    return content[:at] + _SIZE.pack(2**63) + content[at + 8 :]


def _value(kind: int, value: bytes) -> bytes:
    """A file with one value of metadata."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + _SIZE.pack(1) + b"a" + struct.pack("<I", kind) + value


def zipped(*members: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name, content in members:
            packed.writestr(name, content)
    return out.getvalue()


def _zip_link() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr(*_MANIFEST)
        made = zipfile.ZipInfo("l")
        made.external_attr = 0o120777 << 16
        packed.writestr(made, "/etc")
    return out.getvalue()


def _overlapping() -> bytes:
    """A zip file whose list names one member many times."""
    content = zipped(_MANIFEST, ("a", bytes(1000)))
    start, end = content.rindex(b"PK\1\2"), content.rindex(b"PK\5\6")
    first, entry = content.index(b"PK\1\2"), content[start:end]
    size = start - first + 500 * len(entry)
    return content[:start] + entry * 500 + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 501, 501, size, first, 0)


def _wrong_locator() -> bytes:
    """A zip file with a second end, of 64 bits, that is not where it says."""
    content = zipped(_MANIFEST, ("a", b""))
    end = content.rindex(b"PK\5\6")
    return content[:end] + struct.pack("<4sIQI", b"PK\6\7", 0, 2**63, 1) + content[end:]


def _adapter_weights() -> bytes:
    _, spec = from_config(Fields(TINY_LLAMA, ""))
    return save(random_tensors(spec))


def _long_links() -> bytes:
    """Links whose resolved path is longer than `realpath` reads, so that a check by it sees another place."""
    part, place, members = "d" * 200, "", []
    for step in "abcdefghijklmnop":
        members += [folder(f"{place}{part}"), link(f"{place}{step}", part)]
        place += f"{part}/"
    through = f"{'/'.join('abcdefghijklmnop')}/{'l' * 200}"
    members += [link(through, "../" * 16), link("escape", f"{through}/../../../etc"), file("escape/passwd")]
    return archive(members)


def _two_sizes() -> bytes:
    """A member that its header gives no bytes and its extended header 1,024, which are the header of another one."""
    member = tarfile.TarInfo("a")
    member.pax_headers = {"size": "1024"}
    hidden = link("hidden", "/etc")
    packed = member.tobuf(tarfile.PAX_FORMAT) + hidden[0].tobuf() + bytes(512) + bytes(1024)
    return gzip.compress(packed)


def _config(**fields: object) -> bytes:
    return json.dumps(TINY_LLAMA | fields).encode()


def _tokenizer(**parts: object) -> bytes:
    return json.dumps(json.loads(byte_level_tokenizer().to_str()) | parts).encode()


def _pattern(pattern: str) -> bytes:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return _tokenizer(pre_tokenizer=split)


def _char_map() -> bytes:
    rules = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xff\xff\xff\xbf").decode()}
    return _tokenizer(normalizer={"type": "Sequence", "normalizers": [rules]})


_FORMAT_BY_MAP = "{{ ['{0.__class__}'] | map('format', 1) | list }}"
_FORMAT_BY_ATTR = "{% if ('{0.__class__}' | attr('format'))(1) %}{{ raise_exception('reached') }}{% endif %}"
_LOOP = "{% for a in range(10000000) %}x{% endfor %}"
_ITEM = b"\x80\x02]q\x00X\x01\x00\x00\x00aK\x01s."
"""A pickle that sets a key of a list."""
_BIG = "{{1}}" * 50_000
_XMLATTR = "{{ {'a onload': 1} | xmlattr }}"
_URLIZE = "{{ ('a@' + '.' * 20000) | urlize }}"
_FORMAT_MAP = "{% if '{a.__class__}'.format_map({'a': 1}) %}{{ raise_exception('reached') }}{% endif %}"


def _replaced(rule: str, times: int) -> bytes:
    """A vocabulary with one rule many times."""
    rules = [{"type": "Replace", "pattern": {"String": "e"}, "content": rule}] * times
    return _tokenizer(normalizer={"type": "Sequence", "normalizers": rules})


def _long_template() -> bytes:
    special = {"x": {"id": "x", "ids": [1] * 1000, "tokens": ["x"] * 1000}}
    pieces = [{"SpecialToken": {"id": "x", "type_id": 0}}] * 100_000
    return _tokenizer(post_processor={"type": "TemplateProcessing", "single": pieces, "special_tokens": special})


def _safetensors(name: str) -> bytes:
    head = json.dumps({name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
    return _SIZE.pack(len(head)) + head


def _modules(*parts: object) -> bytes:
    return b"\n".join(json.dumps(part).encode() for part in parts)


_GGUF = (
    ("CVE-2024-39720", "Ollama", "file that ends after its magic", lambda: b"GGUF", "ends in the middle"),
    ("CVE-2024-21836", "llama.cpp", "number of tensors", partial(_count, _NUM_TENSORS_AT), "is truncated"),
    ("CVE-2024-23605", "llama.cpp", "number of values", partial(_count, _NUM_VALUES_AT), "is truncated"),
    (
        *("CVE-2025-66960", "Ollama", "length of a text in version 1 of the format"),
        *(lambda: b"GGUF" + struct.pack("<IIII", 1, 0, 1, 2**32 - 1), "is GGUF version 1"),
    ),
    (
        *("CVE-2024-41130", "llama.cpp", "array that is not there"),
        *(lambda: _value(_ARRAY, b""), "ends in the middle"),
    ),
    (
        *("CVE-2024-23496, CVE-2025-66959", "llama.cpp, Ollama", "length of a text"),
        *(lambda: _value(_TEXT, _SIZE.pack(2**64 - 1)), "is truncated"),
    ),
    (
        *("CVE-2024-21825", "llama.cpp", "length of an array of texts"),
        *(lambda: _value(_ARRAY, struct.pack("<IQ", _TEXT, 2**60)), "is truncated"),
    ),
    (
        *("CVE-2025-0315", "Ollama", "array beyond all memory"),
        *(lambda: _value(_ARRAY, struct.pack("<IQ", _UINT64, 2**34)), "is truncated"),
    ),
    ("CVE-2024-21802", "llama.cpp", "100 dimensions of a tensor", lambda: _tensor(num_dims=100), "100 dimensions"),
    (
        *("CVE-2025-53630, CVE-2026-27940, CVE-2026-33298", "llama.cpp", "tensor whose size wraps around"),
        *(lambda: _tensor(dims=(2**32, 2**32)), "is truncated"),
    ),
    (
        *("CVE-2026-53923", "vLLM", "tensor of more elements than 31 bits count"),
        *(lambda: _tensor(dims=(256, 2**24)), "is truncated"),
    ),
    (
        *("CVE-2025-49847", "llama.cpp", "token of 20 MB"),
        *(lambda: _gguf(tokenizer__ggml__tokens=["a" * 20_000_000, "b"]), "token_type must have one number"),
    ),
    ("CVE-2026-7482", "Ollama", "tensor behind the end of the file", lambda: _tensor(offset=2**40), "is truncated"),
    ("CVE-2024-12055", "Ollama", "offset that wraps around", lambda: _tensor(offset=2**64 - 32), "is truncated"),
    ("CVE-2024-8063", "Ollama", "no layers", lambda: _gguf(llama__block_count=0), "block_count is 0"),
    ("CVE-2025-0317", "Ollama", "alignment of 0", lambda: _gguf(general__alignment=0), "general.alignment 0"),
    (
        *("CVE-2025-0312", "Ollama", "tensor with a dimension of 0"),
        *(lambda: _tensor(dims=(0, 256)), "which its type cannot have"),
    ),
)
_TEMPLATES = (
    ("CVE-2024-34359, CVE-2024-2952", "llama-cpp-python, LiteLLM", "chat template with code", CODE.encode, "is unsafe"),
    ("CVE-2026-5760", "SGLang", "chat template with code", CODE.encode, "is unsafe"),
    ("CVE-2024-56326", "Jinja", "`format` as an argument of `map`", _FORMAT_BY_MAP.encode, "failed"),
    ("CVE-2025-27516", "Jinja", "`format` by the filter `attr`", _FORMAT_BY_ATTR.encode),
    ("CVE-2025-61620", "vLLM", "loop of ten million rounds", _LOOP.encode, "Range too big"),
    ("CVE-2016-10745, CVE-2019-10906", "Jinja", "`format_map` of a template", _FORMAT_MAP.encode),
    (
        "CVE-2024-22195, CVE-2024-34064",
        "Jinja",
        "name of an attribute with a space",
        _XMLATTR.encode,
        "Invalid character",
    ),
    ("CVE-2020-28493", "Jinja", "address of dots", _URLIZE.encode),
    ("found by this search, 2026", "Jinja", "template that takes 11 s to compile", _BIG.encode, "250000 characters"),
)
_ARCHIVES = (
    (
        *("CVE-2007-4559, CVE-2025-15031, CVE-2025-15036", "Python, MLflow", "path out of an archive"),
        *(lambda: archive([file("../evil")]), "outside of the model"),
    ),
    (
        *("CVE-2024-37902, CVE-2025-0851", "DJL", "absolute path in an archive"),
        *(lambda: archive([file("/etc/cron.d/evil")]), "outside of the model"),
    ),
    (
        *("CVE-2024-6232", "Python", "digits of a header that backtrack"),
        *(lambda: header("x", b"0" * 1_000_000 + b" a=b\n", kind=tarfile.XHDTYPE), "more than 100 digits"),
    ),
    (
        *("found by this search, 2026", "Python", "map of holes of 2.7 GB"),
        *(lambda: header("x", b"22 GNU.sparse.major=1\n", kind=tarfile.XHDTYPE), "a sparse file"),
    ),
    (
        *("CVE-2026-7774", "Python", "link whose name is that of a folder"),
        *(lambda: archive([link("sub/", ".."), file("sub/evil")]), "cannot be stored"),
    ),
    (
        *("CVE-2026-11940", "Python", "hard link through a symbolic link"),
        *(lambda: archive([link("up", ".."), link("passwd", "up/passwd", is_hard=True)]), "not in the archive"),
    ),
    (
        *("CVE-2025-4517, CVE-2025-4330, CVE-2025-4138, CVE-2024-12718", "Python", "links longer than a path"),
        *(_long_links, "cannot be stored"),
    ),
    (
        *("CVE-2025-8194", "Python", "member of negative size"),
        *(lambda: header("a", size=b"\xff" * 12), "is not a complete"),
    ),
    ("CVE-2025-62518", "astral-tokio-tar", "archive in a member of two sizes", _two_sizes),
)

ATTACKS = (
    *(Attack(ids, product, name, "gguf", *rest) for ids, product, name, *rest in _GGUF),
    *(Attack(ids, product, name, "chat-template", *rest) for ids, product, name, *rest in _TEMPLATES),
    *(Attack(ids, product, name, "tar", *rest) for ids, product, name, *rest in _ARCHIVES),
    Attack(
        *("CVE-2024-45436, CVE-2023-48299, CVE-2026-59820", "Ollama, TorchServe, LiteLLM"),
        *("path out of a zip file", "mar"),
        *(lambda: zipped(_MANIFEST, ("../evil.py", b"")), "outside of the model"),
    ),
    Attack(
        *("CVE-2026-40610", "BentoML", "link in a zip file", "mar", _zip_link, "contains the link 'l'"),
    ),
    Attack("CVE-2024-0450", "Python", "members of a zip file at one place", "mar", _overlapping, "cannot be stored"),
    Attack(
        "CVE-2024-8088", "Python", "name of slashes", "mar", lambda: zipped(_MANIFEST, ("//", b"")), "outside of the"
    ),
    Attack("CVE-2025-8291", "Python", "end of a zip file elsewhere", "mar", _wrong_locator, "not a complete archive"),
    Attack(
        "CVE-2025-24357, CVE-2025-32434, CVE-2024-3568, CVE-2026-1839, CVE-2025-67729, CVE-2025-23298",
        *("vLLM, PyTorch, Transformers, LMDeploy, Transformers4Rec", "weights that call functions"),
        *("torch-file", lambda: zipped(("a/data.pkl", SYSTEM), ("a/version", b"3\n")), "refers to 'posix.system'"),
    ),
    Attack("CVE-2026-24747", "PyTorch", "item of what has none", "torch-pickle", lambda: _ITEM, "list instead of dict"),
    Attack(
        *("CVE-2025-66448, CVE-2026-22807, CVE-2026-27893", "vLLM", "code by `auto_map`", "config-json"),
        lambda: _config(auto_map={"AutoConfig": "evil--x.Config"}),
    ),
    Attack(
        *("CVE-2026-5241, CVE-2026-46517", "Transformers, LMDeploy", "trust in code by the config", "config-json"),
        lambda: _config(
            trust_remote_code=True, text_config={"trust_remote_code": True, "auto_map": {"AutoModel": "x--y.Z"}}
        ),
    ),
    Attack(
        *("CVE-2025-23304, CVE-2026-22584", "NeMo, Uni2TS", "function that a config has called", "config-json"),
        lambda: _config(_target_="os.system", model={"_target_": "builtins.exec", "_args_": ["raise SystemExit"]}),
    ),
    Attack(
        *("CVE-2026-41523", "vLLM", "activation that is any function", "sentence-transformers"),
        *(
            lambda: _modules([{"path": "", "type": "os.system"}], {}, {"activation_fn": "os.system"}),
            "are not supported",
        ),
    ),
    Attack(
        *("CVE-2026-4372", "Transformers", "kernel of a repository by a private field", "config-json"),
        lambda: _config(_attn_implementation_internal="evil/kernel", _experts_implementation_internal="evil/kernel"),
    ),
    Attack(
        *("Trail of Bits, 2023", "safetensors", "header longer than the file", "safetensors"),
        *(lambda: _SIZE.pack(2**63) + b"{}", "its header has"),
    ),
    Attack(
        *("CVE-2025-5197", "Transformers", "name of a tensor that backtracks", "safetensors"),
        lambda: _safetensors("/" + "___" * 50_000),
    ),
    Attack(
        *("CVE-2025-6921", "Transformers", "regex of a config that backtracks", "adapter-files"),
        lambda: json.dumps(CONFIG | {"target_modules": r"(\w+\.?)+!"}).encode() + b"\n" + _adapter_weights(),
    ),
    Attack(
        *("CVE-2026-9856", "Transformers", "name of a template that is a path", "tokenizer-config"),
        lambda: json.dumps({"chat_template": [{"name": "../../evil", "template": "x"}]}).encode(),
    ),
    Attack(
        "CVE-2025-4565",
        "protobuf",
        "groups inside each other",
        "sentencepiece",
        lambda: b"\x0b" * 100_000,
        "wire type 3",
    ),
    Attack(
        *("CVE-2026-1260", "SentencePiece", "map of characters that ends before its words", "sentencepiece"),
        *(lambda: b"\x1a\x0c\x12\x0a\xff\xff\xff\x7f" + bytes(6), "map of characters"),
    ),
    Attack(
        *("CVE-2024-12720, CVE-2025-6638", "Transformers", "pattern that backtracks", "tokenizer-json"),
        lambda: _pattern(r"(\w+\s?)+[!]+$"),
    ),
    Attack(
        *("found by our fuzzer, 2026", "tokenizers", "map of characters of 6 GB", "tokenizer-json"),
        *(_char_map, "has a map of characters"),
    ),
    Attack(
        *("found by this search, 2026", "tokenizers", "rules that multiply a text", "tokenizer-json"),
        *(lambda: _replaced("e" * 100, 5), "times as long"),
    ),
    Attack(
        *("found by this search, 2026", "tokenizers", "a hundred million tokens for each text", "tokenizer-json"),
        *(_long_template, "adds 100000000 tokens"),
    ),
    Attack(
        *("found by this search, 2026", "tokenizers", "words whose time is cubic", "tokenizer-json"),
        *(
            lambda: _tokenizer(model={"type": "WordPiece", "vocab": {}, "max_input_chars_per_word": 2**60}),
            "at most 500",
        ),
    ),
)
