"""Every parser of what strangers send ends in a result or in a declared error, in bounded time and memory."""

import pytest

from tests.fuzz import native
from tests.fuzz.campaign import run
from tests.fuzz.mutation import case
from tests.fuzz.target import CORPUS
from tests.fuzz.targets import TARGETS

SEED = 1
"""Fixed, so that a change that did not touch a parser does not fail on it; `scripts/fuzz` takes another each time."""


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_seeds_and_inputs_that_broke_a_parser_once_end_in_a_result_or_in_a_declared_error(target):
    run(target, target.corpus.values())


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_mutations_end_in_a_result_or_in_a_declared_error(target):
    report = run(target, (case(target, SEED, number) for number in range(target.suite_cases)))
    assert report.num_cases == target.suite_cases


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_some_seed_of_each_target_is_accepted(target):
    """A target whose seeds are all refused would fuzz nothing but the first check."""
    assert run(target, target.seeds).num_accepted


def test_every_folder_of_the_corpus_has_a_target():
    assert {folder.name for folder in CORPUS.iterdir()} <= {*TARGETS, *native.purposes()}
