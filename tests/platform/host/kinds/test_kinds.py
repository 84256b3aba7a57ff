"""The stored form of records changes with their version only."""

import gc

import pytest

from headrace.core.errors import SettingsError
from headrace.platform.host.operations import KINDS, refuse_newer
from headrace.platform.state.coordination_tables import TABLES
from headrace.platform.state.records import Kind

from .freeze import column_text, forms, frozen_forms

FORMS = forms()


@pytest.mark.parametrize("version", FORMS)
def test_a_stored_form_is_that_of_its_version(version: str) -> None:
    frozen = frozen_forms()
    assert version in frozen, "new version: run `python -m tests.platform.host.kinds.freeze`"
    assert FORMS[version] == frozen[version], (
        f"{version} has changed, and stores have records of it: append a migration to its kind, or change the version "
        "in state/schema.py, then run `python -m tests.platform.host.kinds.freeze`"
    )


def test_an_earlier_headrace_can_write_the_coordination_tables() -> None:
    first: dict[str, list[str]] = frozen_forms()["coordination"]
    assert set(first) <= set(TABLES.tables)
    for name, columns in first.items():
        new = [column for column in TABLES.tables[name].c if column_text(column) not in columns]
        assert len(new) == len(TABLES.tables[name].c) - len(columns), f"{name} has changed a column or lost it"
        assert all(column.server_default is not None for column in new), f"{name} has a new column without a default"


def test_all_kinds_are_listed() -> None:
    gc.unfreeze()  # `tests/conftest.py` hides what is there when tests begin
    kinds = [found for found in gc.get_objects() if type(found) is Kind and _is_ours(found.spec)]
    assert {kind.name for kind in kinds} == set(KINDS)


def _is_ours(part: type) -> bool:
    return part.__module__.startswith("headrace.")


def test_records_of_a_newer_headrace_are_refused_with_a_remedy() -> None:
    refuse_newer({name: kind.version for name, kind in KINDS.items()}, what="The store")
    with pytest.raises(SettingsError, match="The store has records of the kind alarm with schema version 99; this"):
        refuse_newer({"alarm": 99}, what="The store")
    with pytest.raises(SettingsError, match="the kind sofa, which this Headrace does not have"):
        refuse_newer({"sofa": 1}, what="The store")
