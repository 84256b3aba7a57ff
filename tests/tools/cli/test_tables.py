import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.tools.cli.tables import table

WORDS = st.lists(st.text("abc", min_size=1, max_size=9), min_size=1, max_size=8).map(" ".join)


@pytest.fixture
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.tools.cli.tables.sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setenv("COLUMNS", "30")


ROWS = [("AGE", "WHAT", "WHY"), ("12s", "Setting desired count to 2.", "policy-of-the-load: alarm High")]


@pytest.mark.usefixtures("narrow_terminal")
def test_cells_are_wrapped_on_a_narrow_terminal() -> None:
    assert table(ROWS).splitlines() == [
        "AGE  WHAT     WHY",
        "12s  Setting  policy-of-the-load:",
        "     desired  alarm High",
        "     count",
        "     to 2.",
    ]


@pytest.mark.usefixtures("narrow_terminal")
def test_a_command_in_a_cell_stays_on_one_line() -> None:
    cell = "It failed: `headrace logs a` says why."
    assert table([("NOTE", "AGE"), (cell, "12s")]).splitlines()[1:] == [
        "It failed:                 12s",
        "`headrace logs a` says",
        "why.",
    ]


def test_rows_keep_one_line_outside_a_terminal() -> None:
    assert not sys.stdout.isatty()
    assert [len(line.split("  ")) for line in table(ROWS).splitlines()[1:]] == [3]


@pytest.mark.usefixtures("narrow_terminal")
@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=4))
def test_wrapped_cells_keep_their_words(rows: list[tuple[str, str, str]]) -> None:
    lines = table(rows).splitlines()
    assert sorted(" ".join(lines).split()) == sorted(" ".join(" ".join(row) for row in rows).split())
    longest = [max(len(word) for row in rows for word in row[column].split()) for column in range(3)]
    assert max(map(len, lines)) <= max(30, sum(longest) + 4)
