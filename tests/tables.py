"""One test over a table of cases, where a test for each would cost more than what it checks."""

from collections.abc import Callable, Iterable
from typing import Any


def check_rows(rows: Iterable[tuple[str, tuple[Any, ...]]], check: Callable[..., None]) -> None:
    """
    Call `check` with the values of every row, and fail with the failures of all rows.

    Args:
        rows: A name for each row, which its failure shows, and its values.
        check: Raises if the values are wrong.
    """
    failures, num_rows = [], 0
    for name, values in rows:
        num_rows += 1
        try:
            check(*values)
        except Exception as error:  # noqa: BLE001 -- shown with those of other rows
            error.add_note(f"Row: {name}")
            failures.append(error)
    assert num_rows, "the table is empty"
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {num_rows} rows failed", failures)
