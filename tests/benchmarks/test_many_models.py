"""The parts of the measurement of many models that need no models."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.many_models.run import ask, copy_models, tree

from headrace.testing.server import echo_server


def test_models_are_copies_under_new_names(tmp_path: Path) -> None:
    files = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for file in files:
        file.write_text(file.name)
    (tmp_path / "models").mkdir()
    assert copy_models(files, tmp_path / "models", 3) == ["model-0", "model-1", "model-2"]
    assert [(tmp_path / "models" / f"model-{number}.gguf").read_text() for number in range(3)] == [
        "a.gguf",
        "b.gguf",
        "a.gguf",
    ]


def test_a_request_says_why_it_was_lost() -> None:
    with echo_server() as server:
        port = urlsplit(server.url).port or 0
        assert ask(port, "echo", 1).error == ""
    assert ask(port, "echo", 1).error != ""
    assert next(tree(os.getpid())) == os.getpid()
