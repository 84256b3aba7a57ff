"""An AWS CLI that would call AWS in spite of `AWS_ENDPOINT_URL` is known by the files beside it."""

from pathlib import Path

import pytest

from headrace.tools.cli.env import too_old


def placed(root: Path, program: str, package: str = "") -> str:
    """Return a path with a program below `root`, and its package's metadata if any."""
    file = root / program
    file.parent.mkdir(parents=True)
    file.write_text("#!/bin/sh\n", encoding="utf-8")
    file.chmod(0o755)
    if package:
        (root / package).mkdir(parents=True)
    return str(file.parent)


@pytest.mark.parametrize(
    ("program", "package", "version"),
    [
        ("usr/bin/aws", "usr/lib/python3/dist-packages/awscli-2.9.19.dist-info", "2.9"),
        ("venv/bin/aws", "venv/lib/python3.11/site-packages/awscli-1.28.0.dist-info", "1.28"),
        ("venv/bin/aws", "venv/lib/python3.11/site-packages/awscli-1.46.3.dist-info", None),
        ("usr/bin/aws", "usr/lib/python3/dist-packages/awscli-2.23.6.egg-info", None),
        ("local/aws-cli/v2/2.12.7/bin/aws", "", "2.12"),
        ("local/aws-cli/v2/2.31.0/bin/aws", "", None),
        ("bin/aws", "", None),
    ],
)
def test_a_version_that_ignores_the_variable_is_found(
    tmp_path: Path, program: str, package: str, version: str | None
) -> None:
    assert too_old(placed(tmp_path, program, package)) == version


def test_a_link_of_the_installer_is_followed(tmp_path: Path) -> None:
    placed(tmp_path, "local/aws-cli/v2/2.11.0/bin/aws")
    links = tmp_path / "bin"
    links.mkdir()
    (links / "aws").symlink_to(tmp_path / "local/aws-cli/v2/2.11.0/bin/aws")
    assert too_old(str(links)) == "2.11"


def test_without_the_program_there_is_no_version(tmp_path: Path) -> None:
    assert too_old(str(tmp_path)) is None
