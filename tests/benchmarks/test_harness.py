"""The parts that the benchmarks share: turns, ratios, choices, tables and servers."""

import sys
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.harness.results import choose, table
from benchmarks.harness.servers import Launch, ServerFailed, ServerProcess, pings
from benchmarks.harness.turns import in_turns, pair_ratios
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import WAIT_S


@given(st.lists(st.text(), min_size=1, max_size=5, unique=True), st.integers(1, 10))
def test_each_name_has_its_turn_in_each_round_and_comes_first_in_some(names: list[str], rounds: int) -> None:
    turns = list(in_turns(names, rounds))
    assert Counter(turns) == {(number, name): 1 for number in range(rounds) for name in names}
    firsts = [name for _, name in turns[:: len(names)]]
    assert len(set(firsts)) == min(rounds, len(names))


def test_ratios_are_those_of_the_pairs() -> None:
    assert pair_ratios([2.0, 9.0, 8.0], [1.0, 3.0, 4.0]) == {"ratios": [2.0, 3.0, 2.0], "ratio_median": 2.0}


def test_a_row_is_chosen_by_any_of_its_keys() -> None:
    rows = ("a1", "a2", "b1")
    assert choose("row", rows, ["a", "b1"], lambda row: {row, row[0]}) == rows
    assert choose("row", rows, ["a2"], lambda row: {row, row[0]}) == ("a2",)


def test_a_table_has_no_double_space_for_an_empty_cell() -> None:
    assert table(["", "x"], [["a", ""], ["b", 1]]) == "| | x |\n|---|---:|\n| a | |\n| b | 1 |"


def test_a_server_that_ends_is_reported_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    launch = Launch(arguments=(sys.executable, "-c", "import sys; sys.exit(3)"))
    with ServerProcess(launch, log=log) as server, pytest.raises(ServerFailed, match=rf"ended with 3, see {log}"):
        server.wait_until(pings, timeout_s=WAIT_S)
