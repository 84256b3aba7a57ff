"""Files beside a server or a platform, which people copy from each other: models, images, requirements, caches."""

import json
from functools import partial

import numpy as np

from headrace.core.errors import SettingsError
from headrace.inference.engine.core.stored_blocks import StoreKey
from headrace.inference.engine.prefix_store.block_file import BlockFolder, DamagedFile
from headrace.platform.cluster.many_models.presets import read_presets
from headrace.platform.control.jumpstart import hub_documents, specs
from headrace.platform.control.jumpstart.catalogue import read_rows
from headrace.platform.control.model.own_images import read_own_images
from headrace.serving.handlers.requirements_file import read_requirements
from tests.fuzz.target import Target
from tests.fuzz.targets.archives import scene

_MAX_TEXT = 100
"""Characters of the settings of a model for each byte of its file: aliases of YAML may not multiply."""


def _presets(data):
    """A file of `headrace serve --models`."""
    file = scene("presets") / "models.yaml"
    file.write_bytes(data)
    for preset in read_presets(file):
        assert all(isinstance(name, str) for name in preset.names)
        assert sum(map(len, preset.settings.values())) <= _MAX_TEXT * len(data)


def _catalogue(data):
    """A user's catalogue of JumpStart, and the documents that SDKs read of its rows."""
    for row in read_rows(data.decode("utf-8", "replace"), source="jumpstart.toml", is_own=True).values():
        for version in row.versions:
            json.dumps(specs.model_spec(row, version, region="us-east-1"))
        hub_documents.content(row, row.version, "us-east-1", created_s=0.0)


def _images(data):
    read_own_images(data.decode("utf-8", "replace"), source="images.toml")


def _requirements(data):
    """A model's `requirements.txt`; what is installed of it stays in the model's folder, or is a URL or a package."""
    folder = scene("requirements")
    (folder / "requirements.txt").write_bytes(data)
    (folder / "more.txt").write_text("-r requirements.txt\nrequests\n")
    found = read_requirements(folder / "requirements.txt")
    if found is not None:
        assert all("\n" not in line for line in found.installed_lines())


def _prefix(data):
    """A file of the prefix cache is what was written, or damaged."""
    folder, row = _prefix_folder(), np.empty(len(_ROW), np.uint8)
    folder.file(_KEY).write_bytes(data)
    folder.read(_KEY, row)
    assert row.tobytes() == _ROW


def _prefix_folder() -> BlockFolder:
    return BlockFolder(scene("prefix"), bytes(16))


def _prefix_seeds():
    row = np.frombuffer(_ROW, np.uint8)
    _prefix_folder().write(_KEY, row, depth=0, is_valid=lambda: True)
    return {"row": _prefix_folder().file(_KEY).read_bytes()}


_KEY = StoreKey("kv", bytes(range(16)))
_ROW = bytes(range(64))
_PRESETS = b"""defaults: {dtype: w8a8}
models:
  small: {model: ./a.gguf, aliases: [s, t], pin: true, ttl_s: 60, max_model_len: 2048}
  large: {model: org/large, adapter: ["x=./x", "y=./y"], speculative_config: {method: ngram}}
"""
_CATALOGUE = b"""[my-model]
model = "/models/my-model"
server = "tgi"
version = "2.1.0"
gated = true
environment = { OPTION_MAX_MODEL_LEN = "2048" }
"""
_IMAGES = b"""[images."team/server"]
command = "python -m server --port {port} --model {model}"
[images."123456789012.dkr.ecr.*.amazonaws.com/llm:*"]
dialect = "lmi-0.26"
options = { dtype = "w8a8", max_num_seqs = 4 }
[images."team/*"]
container = true
"""
_REQUIREMENTS = b"""--extra-index-url https://a.example/simple
-r more.txt
-c ../constraints.txt
numpy==1.26.4 ; python_version > "3.9"  # why
./wheels/a-1.0-py3-none-any.whl
-e git+https://a.example/b.git#egg=b
torch-neuronx
"""
_TOML_WORDS = (
    b"0x" + b"f" * 5000,
    b"9" * 5000,
    b"[a.b.c]\n",
    b"[[a]]\n",
    b'"""',
    b"1979-13-01",
    b"inf",
    b"nan",
    b"= {",
    b"a." * 500,
    b"[" * 5000,
)
_target = partial(Target, suite_cases=200)

TARGETS = (
    _target(
        "model-presets",
        _presets,
        (SettingsError,),
        lambda: {"yaml": _PRESETS, "json": b'{"models": {"a": {"model": "org/a", "pin": false}}}'},
        words=(
            b"0x" + b"f" * 5000,
            b"&a [*a, *a]",
            b"<<: *a",
            b"2001-99-01",
            b"folder: ..",
            b"aliases: ",
            b"9" * 5000,
            b"[" * 400,
            b"host: x",
        ),
        suite_cases=80,
    ),
    _target("jumpstart-catalogue", _catalogue, (SettingsError,), lambda: {"row": _CATALOGUE}, words=_TOML_WORDS),
    _target(
        "own-images",
        _images,
        (SettingsError,),
        lambda: {"three": _IMAGES},
        words=(*_TOML_WORDS, b"environment = {", b"'"),
    ),
    _target(
        "requirements",
        _requirements,
        (),
        lambda: {"all": _REQUIREMENTS},
        words=(
            b"-r ",
            b"-c ",
            b"file:///etc/passwd",
            b"\0",
            b"a" * 5000,
            b"../" * 30,
            b"\xef\xbb\xbf",
            b"\\\n",
            b" #",
            b"://",
        ),
    ),
    _target("prefix-file", _prefix, (DamagedFile, OSError), _prefix_seeds, words=(b"HRPREFIX", b"state\0\0\0")),
)
