"""The consent without which `headrace serve` runs no code of a model."""

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.tools.cli.serve import ask_on_terminal, check_consent, code_digest
from headrace.tools.cli.user_code import UserCode, find_user_code
from tests.headrace_handler.torchserve_models import write_model

NONE = Path("/nonexistent")
HANDLE = "def handle(inputs): ..."
MANIFEST = '{"model": {"modelName": "m", "handler": "h.py", "modelVersion": "1.0"}}'
FORMATTER = "@input_formatter\ndef f(payload): ..."
CODE = {
    "sagemaker": {"code/inference.py": "def model_fn(folder): ..."},
    "a program at the top": {"inference.py": "def model_fn(folder): ..."},
    "a pickle of xgboost": {"xgboost-model": ""},
    "a pickle of scikit-learn": {"model.joblib": "", "serving.properties": "option.trust_insecure_model_files=true"},
    "djl": {"model.py": HANDLE, "requirements.txt": "evil\n"},
    "formatters around the engine": {"model.py": FORMATTER, "config.json": "{}"},
    "an entry": {"serving.properties": "option.entryPoint=app.py", "app.py": HANDLE},
    "torchserve": {"MAR-INF/MANIFEST.json": MANIFEST, "h.py": ""},
    "a module that shadows one of a pipeline": {"config.json": "{}", "transformers.py": ""},
    "requirements of a pipeline": {"config.json": "{}", "requirements.txt": "evil\n"},
}
PIPELINE = {"config.json": "{}", "model.safetensors": ""}


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def found(place: Path, home: Path, **env: str) -> UserCode:
    code = find_user_code({"model": str(place), "cache_dir": home}, env, model_folder=NONE)
    assert code is not None
    return code


def is_allowed(code: UserCode, overrides: Mapping[str, object] | None = None, **env: str) -> bool:
    """Return whether code runs that the user cannot be asked about."""
    try:
        check_consent(code, overrides or {}, env)
    except SettingsError as error:
        return not error.message.startswith(f"{code.place} brings code that would run as your user")
    return True


@pytest.mark.parametrize("kind", CODE)
def test_code_of_a_folder_needs_consent(tmp_path: Path, kind: str) -> None:
    env = {"HF_TASK": "fill-mask"} if "pipeline" in kind else {}
    code = found(write(tmp_path / "model", CODE[kind]), tmp_path / "home", **env)
    assert not is_allowed(code)
    for handler in ("auto", "handler", code.plan.choice.contract):
        assert is_allowed(code, {"handler": handler})
    assert is_allowed(code, HEADRACE_HANDLER="auto")
    assert not is_allowed(code, {"handler": None}, HEADRACE_HANDLER=" ", SAGEMAKER_PROGRAM="inference.py")


def test_archives_and_stores_of_archives_need_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_model(tmp_path / "noop", "def handle(data, context): ...")
    store = tmp_path / "store"
    store.mkdir()
    with zipfile.ZipFile(store / "noop.mar", "w") as archive:
        for file in filter(Path.is_file, folder.rglob("*")):
            archive.write(file, file.relative_to(folder))
    packed = write(tmp_path / "sagemaker", CODE["sagemaker"])
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as tar:
        tar.add(packed, ".")
    for place in (store / "noop.mar", store, tmp_path / "model.tar.gz"):
        assert not is_allowed(found(place, tmp_path / "home"))
    for models in ("all", "none"):
        code = found(store, tmp_path / "home", TS_LOAD_MODELS=models)
        assert code.store is not None
        assert not is_allowed(code)


def test_a_pipeline_over_weights_and_a_deployed_model_need_none(tmp_path: Path) -> None:
    assert is_allowed(found(write(tmp_path / "model", PIPELINE), tmp_path / "home", HF_TASK="fill-mask"))
    code = found(write(tmp_path / "code", CODE["djl"]), tmp_path / "home", HEADRACE_TRUST_MODEL_FILES="true")
    assert is_allowed(code)


def test_an_answer_holds_until_a_file_that_can_run_code_changes(tmp_path: Path) -> None:
    folder, home, asked = write(tmp_path / "model", {**CODE["djl"], "data.json": "1"}), tmp_path / "home", []

    def ask(_code: UserCode, is_changed: bool) -> bool:
        asked.append(is_changed)
        return True

    def start() -> int:
        check_consent(found(folder, home), {}, {}, ask)
        return len(asked)

    assert start() == start() == 1
    assert is_allowed(found(folder, home))
    (folder / "data.json").write_text("2")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "model.cpython-311.pyc").write_text("")
    assert start() == 1
    changes = {
        "model.py": HANDLE + "\n",
        "requirements.txt": "worse\n",
        "inner/help.py": "",
        "inner/weights.pkl": "",
        "serving.properties": "option.pythonExecutable=./python\n",
    }
    for number, (name, content) in enumerate(changes.items(), 2):
        write(folder, {name: content})
        assert start() == number, name
    assert asked == [False, True, True, True, True, True]
    (folder / "linked").symlink_to(write(tmp_path / "elsewhere", {"more.py": ""}))
    assert start() == 7
    (tmp_path / "elsewhere" / "more.py").write_text("changed")
    assert start() == 8


def test_answers_of_other_users_and_refusals_do_not_count(tmp_path: Path) -> None:
    code = found(write(tmp_path / "model", CODE["djl"]), tmp_path / "home")
    with pytest.raises(SettingsError):
        check_consent(code, {}, {}, lambda *_: False)
    assert not is_allowed(code)
    check_consent(code, {}, {}, lambda *_: True)
    file = tmp_path / "home" / "trusted-code.json"
    assert file.stat().st_mode & 0o777 == 0o600
    for content, mode in ((None, 0o666), ("[]", 0o600), ("{", 0o600)):
        file.chmod(mode)
        if content is not None:
            file.write_text(content)
        assert not is_allowed(code)


def test_a_loop_of_links_and_files_without_end_are_passed(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", CODE["djl"])
    (folder / "again").symlink_to(folder)
    os.mkfifo(folder / "pipe.py")
    (folder / "kernel.py").symlink_to("/proc/kmsg")
    assert code_digest(folder) == code_digest(folder)


@pytest.mark.parametrize(
    ("sandbox", "said"),
    [("off", "with all rights"), ("auto", "in a sandbox of the parts"), ("require", "in a sandbox. ")],
)
def test_the_question_says_in_which_sandbox_the_code_would_run(tmp_path, monkeypatch, capsys, sandbox, said) -> None:
    code = found(write(tmp_path / "m", CODE["djl"]), tmp_path, HEADRACE_SANDBOX=sandbox)
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("click.confirm", lambda *_, **_options: True)
    assert ask_on_terminal(code, False)
    assert f"It runs as your user, {said}" in capsys.readouterr().err


def test_without_a_terminal_nothing_is_run_or_installed(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", {"model.py": f"open({str(tmp_path / 'ran')!r}, 'w')\n{HANDLE}"})
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "serve", folder, "--port", "0"],
        env={**os.environ, "HEADRACE_HOME": str(tmp_path / "home")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "brings code that would run as your user" in done.stderr
    assert not (tmp_path / "ran").exists()
