"""Files and requests of public vulnerabilities end in an error that says what is wrong, or do nothing."""

import re
from pathlib import Path

import pytest

from tests.cves import ATTACKS
from tests.fuzz.campaign import failure, stopped_by_signal
from tests.fuzz.target import Malformed
from tests.fuzz.targets import TARGETS

PAGE = Path(__file__).parent.parent / "docs" / "known-attacks.md"


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{attack.ids} {attack.target}")
def test_an_attack_on_others_is_refused_or_does_nothing(attack) -> None:
    target, data = TARGETS[attack.target], attack.make()
    with stopped_by_signal():
        assert failure(target, data) is None  # an undeclared error, or too much time
        if attack.answer:
            with pytest.raises((*target.refusals, Malformed), match=attack.answer):
                target.check(data)
        else:
            target.check(data)


def test_the_page_shows_every_attack() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if re.search(r"` \| (refused|harmless) \|$", line)]
    assert [attack.row for attack in ATTACKS] == rows
