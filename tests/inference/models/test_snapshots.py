"""Copies of a model have every file that its loaders read, and no others."""

import ast
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import headrace.inference.models
from headrace.core.errors import ModelNotFound
from headrace.inference.models.snapshots import choose_files, is_wanted_folder
from tests.inference.models.test_sources import run_with_hub

_FILE = re.compile(r"[\w*.-]+\.(json|jinja|txt|model|tiktoken|bin|safetensors|pth)")
COMMIT = "c" * 40
TEMPLATED = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights",
    "vocab.json": b"{}",
    "merges.txt": b"",
    "chat_template.jinja": b"default",
    "additional_chat_templates/tool_use.jinja": b"tools",
    "1_Pooling/config.json": b"{}",
    "2_Dense/model.safetensors": b"dense",
    "adapters/law/adapter_config.json": b"{}",
    "adapters/law/adapter_model.safetensors": b"low",
}
OTHERS = {
    "pytorch_model.bin": b"second copy",
    "consolidated.safetensors": b"third copy",
    "onnx/model.safetensors": b"another format",
    "additional_chat_templates/README.md": b"text",
    "._model.safetensors": b"twin",
    "README.md": b"text",
    ".gitattributes": b"",
    "model.gguf": b"another format",
}


def named_by_loaders() -> set[str]:
    """The names and patterns of files in the source of the loaders."""
    sources = Path(headrace.inference.models.__file__).parent.glob("*.py")
    nodes = [node for source in sources for node in ast.walk(ast.parse(source.read_text()))]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if _FILE.fullmatch(text)} - {".headrace.json"}


def place(name: str) -> str:
    if name.startswith("adapter_"):
        return f"adapters/law/{name}"
    if name == "key_to_filename.json":
        return f"pytorch_model.bin/{name}"
    return f"additional_chat_templates/{name}" if name == "x.jinja" else name


def test_every_file_that_a_loader_names_is_copied():
    names = {place(name.replace("*", "x")) for name in named_by_loaders()}
    assert {"merges.txt", "tokenizer.json", "additional_chat_templates/x.jinja", "x.pth", "x.tiktoken"} <= names
    for name in names:
        assert name in choose_files({"config.json", name}, "a model"), name
        assert "/" not in name or is_wanted_folder(name.partition("/")[0]), name


def test_the_files_of_other_formats_and_strays_are_not_copied():
    assert choose_files([*TEMPLATED, *OTHERS], "a model") == sorted(TEMPLATED)


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["2_Dense/pytorch_model.bin"], ["2_Dense/pytorch_model.bin"]),
        (["2_Dense/pytorch_model.bin", "2_Dense/model.safetensors"], ["2_Dense/model.safetensors"]),
        (["pytorch_model.bin/p0.weight", "model.safetensors"], ["model.safetensors"]),
        (["pytorch_model.bin/p0.weight"], ["pytorch_model.bin/p0.weight"]),
        (["modeling_x.py", "sub/modeling_x.py"], ["modeling_x.py"]),
        (["additional_chat_templates/../../x.jinja", "1_Pooling/../config.json", "adapters//adapter_config.json"], []),
        (["additional_chat_templates/sub/x.jinja", "x_Pooling/config.json"], []),
    ],
)
def test_pickles_are_copied_only_without_safetensors_and_paths_never_lead_elsewhere(names, chosen):
    assert choose_files(["config.json", *names], "a model") == sorted(["config.json", *chosen])


REPOSITORIES = {
    "org/tiny": TEMPLATED | OTHERS,
    "org/one": {"m.gguf": b"GGUF", "._m.gguf": b"twin"},
    "org/two": {"a.gguf": b"GGUF", "b.gguf": b"GGUF"},
}


class Hub(BaseHTTPRequestHandler):
    """The Hub's routes for the files of repositories."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        listing = re.fullmatch(r"/api/models/(org/\w+)(/revision/\w+)?", path)
        file = re.fullmatch(rf"/(org/\w+)/resolve/(?:main|{COMMIT})/(.+)", path)
        tree = re.fullmatch(rf"/api/models/(org/\w+)/tree/{COMMIT}", path)
        if tree is not None:
            files = REPOSITORIES[tree[1]].items()
            entries = [{"type": "file", "path": name, "size": len(body), "oid": name} for name, body in files]
            self.answer(json.dumps(entries).encode())
        elif listing is not None:
            siblings = [{"rfilename": name} for name in REPOSITORIES[listing[1]]]
            self.answer(json.dumps({"id": listing[1], "sha": COMMIT, "siblings": siblings}).encode())
        elif file is not None and file[2] in REPOSITORIES[file[1]]:
            self.answer(REPOSITORIES[file[1]][file[2]])
        else:
            self.answer(b"ok")

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


LOCATE = """
from pathlib import Path
from headrace.core.errors import ModelNotFound
from headrace.core.progress import no_progress
from headrace.inference.models.sources import locate
for ref in ("org/tiny", "org/one", "org/two"):
    try:
        print(locate(ref, revision=None, home=Path("."), progress=no_progress).path)
    except ModelNotFound as exc:
        print(exc)
"""


def test_a_model_of_the_hub_is_copied_with_its_templates_modules_and_vocabulary(hub, tmp_path):
    done = run_with_hub(LOCATE, tmp_path, HF_ENDPOINT=hub, HF_HUB_OFFLINE="0")
    tiny, first, second = done.stdout.splitlines()

    copied = {path.relative_to(tiny).as_posix() for path in Path(tiny).rglob("*") if path.is_file()}
    assert copied == set(TEMPLATED)
    assert first.endswith(f"models--org--one/snapshots/{COMMIT}/m.gguf")
    assert second == "org/two has several GGUF files (a.gguf, b.gguf). Name one of them."
    offline = run_with_hub(LOCATE, tmp_path, HF_ENDPOINT=hub, HF_HUB_OFFLINE="1").stdout.splitlines()
    assert offline[:2] == [tiny, first]


def test_a_repository_without_a_model_says_so():
    with pytest.raises(ModelNotFound, match=r"neither a config\.json nor a \.gguf file"):
        choose_files(["README.md", "sub/config.json", "._m.gguf"], "org/name")
