"""The script that measures how many faults the quick tests find makes faults and no others."""

import ast
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

SPEC = spec_from_file_location("mutants", Path(__file__).parent.parent / "scripts" / "mutants.py")
mutants = sys.modules["mutants"] = module_from_spec(SPEC)
SPEC.loader.exec_module(mutants)

MODULE = '''
"""A module."""

@cache(8)
def oldest(ages: list[int], least: int = 3) -> int:
    """Return the most."""
    most = 0
    for age in ages:
        if age > most and age != 7:
            most = age
    log(f"of {len(ages) + 1}")
    return most - least
'''


def test_each_mutant_has_one_fault_and_the_module_is_whole_again():
    tree = ast.parse(MODULE)
    before = ast.unparse(tree)
    made = list(mutants.mutants_of(tree))
    assert ast.unparse(tree) == before
    assert [mutant.change for mutant in made] == [
        'without  log(f"of {len(ages) + 1}")'.replace('"', "'"),
        "3  ->  4",
        "0  ->  1",
        "if age > most and age != 7:  ->  if not (age > most and age != 7):",
        "age > most and age != 7  ->  age > most or age != 7",
        "age > most  ->  age >= most",
        "age != 7  ->  age == 7",
        "7  ->  8",
        "return most - least  ->  return None",
        "most - least  ->  most + least",
    ]
    assert len({ast.unparse(mutant.tree) for mutant in made} | {before}) == len(made) + 1


def test_every_module_and_its_tests_exist():
    for path, tests in mutants.MODULES.items():
        assert (mutants.SRC / path).is_file()
        assert all((mutants.ROOT / "tests" / test).exists() for test in tests.split()), tests
