"""Files of tests that share an expensive fixture run in one process of xdist."""

import pytest

from tests.sharing import FIXTURES, ROOT, group_of


@pytest.mark.parametrize(
    ("file", "group"),
    [
        ("tests/platform/host/test_end_to_end.py", "tests/platform/host"),
        ("tests/platform/host/test_canaries.py", "tests/platform/host"),  # by a fixture of its own
        ("tests/platform/cluster/test_launcher_contract.py", "tests/platform/cluster"),  # by `getfixturevalue`
        ("tests/e2e/test_clients.py", "tests/e2e"),
        ("tests/platform/host/test_vllm.py", ""),  # has a platform of its own
        ("tests/e2e/test_backends.py", ""),
        ("tests/core/test_errors.py", ""),
    ],
)
def test_a_file_runs_with_those_that_use_the_same_fixture(file: str, group: str) -> None:
    assert group_of(file) == (group or file)


def test_each_fixture_is_defined_where_the_table_says() -> None:
    for folder, names in FIXTURES.items():
        text = (ROOT / folder / "conftest.py").read_text()
        assert all(f"def {name}(" in text for name in names), folder
