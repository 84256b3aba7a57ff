"""Commands as a user runs them, with a small real model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    """Run a command line as a process; weights are packed once for all tests here."""
    home = tmp_path_factory.mktemp("home")
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}

    def run(*args: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "headrace", *map(str, args)]
        if args[0] in {"generate", "chat"}:
            command += ["--max-model-len", "1024", "--max-num-seqs", "8"]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, env={**env, "HEADRACE_HOME": str(home)}, check=False
        )
        assert done.returncode == 0, done.stderr
        return done

    return run


def test_generate_continues_a_text(run, smollm2_path: Path) -> None:
    assert "Paris" in run("generate", smollm2_path, "--completion", "-p", "The capital of France is", "-n", 4).stdout


def test_generate_answers_in_the_form_of_a_schema(run, smollm2_path: Path) -> None:
    schema = '{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}'
    shown = run("generate", smollm2_path, "-p", "A person as JSON:", "--json-schema", schema, "-n", 40).stdout
    assert isinstance(json.loads(shown)["age"], int)


def test_chat_answers_and_remembers(run, smollm2_path: Path) -> None:
    done = run("chat", smollm2_path, "-t", 0, stdin="What is the capital of France? Answer in one sentence.\n/stats\n")
    assert "Paris" in done.stdout
    assert "1 answer," in done.stderr


def test_a_batch_gives_the_same_texts_as_separate_runs(run, smollm2_path: Path, tmp_path: Path) -> None:
    prompts = ["The sea is", "Two plus two is", "Once upon a time there was a", "Water boils at"]
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    run("generate", smollm2_path, "--input", source, "--output", output, "-n", 12)
    together = [json.loads(line)["text"] for line in output.read_text().splitlines()]
    alone = json.loads(run("generate", smollm2_path, "--completion", "-p", prompts[2], "-n", 12, "--json").stdout)
    assert alone["text"] == together[2]
    assert all(together)
