"""
The files of tests that run in one process of xdist: those that share a fixture that is expensive to make.

Each process would make it for itself. The other files go to whichever process is free.
"""

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[1]
FIXTURES = {
    "tests/e2e": ("server",),
    "tests/platform/cluster": ("nodes",),
    "tests/platform/host": ("platform", "endpoint", "shell"),
    "tests/platform/host/console": ("driver", "platform", "running"),
    "tests/serving/server": ("driver", "page"),
}
"""Names of expensive fixtures by the folder whose `conftest.py` defines them."""
_ASKING = re.compile(
    r"^(?:@pytest(?:_asyncio)?\.fixture[^\n]*\n)(?:async )?def \w+\(([^)]*)\)|^(?:async )?def test_\w+\(([^)]*)\)"
    r"|(?:usefixtures|getfixturevalue)\(([^)]*)\)",
    re.MULTILINE,
)
"""What asks for fixtures: other fixtures, tests, marks and calls."""


@cache
def group_of(path: str) -> str:
    """Return the folder with whose expensive fixtures a file of tests runs, or the file itself."""
    for folder, names in FIXTURES.items():
        if path.startswith(f"{folder}/test_"):
            text = (ROOT / path).read_text(encoding="utf-8")
            asked = {name for found in _ASKING.findall(text) for name in re.findall(r"\w+", " ".join(found))}
            return folder if any(name in asked and f"def {name}(" not in text for name in names) else path
    return path


def make_scheduler(config: pytest.Config, log: Any) -> "LoadFileScheduling":
    """Return what gives files to processes."""
    from xdist.scheduler import LoadFileScheduling

    class ByGroup(LoadFileScheduling):
        """Gives the files of a group to one process."""

        def _split_scope(self, nodeid: str) -> str:
            return group_of(super()._split_scope(nodeid))

    return ByGroup(config, log)
