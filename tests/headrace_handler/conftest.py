from collections.abc import Iterator

import pytest

from tests.headrace_handler.support import imports_of_a_child


@pytest.fixture
def ts_imports() -> Iterator[None]:
    """The package `ts` and the handlers' modules are imported afresh by each test."""
    with imports_of_a_child("ts"):
        yield
