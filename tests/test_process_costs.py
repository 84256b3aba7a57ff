"""The script that attributes CPU time to processes counts orphans and those that are killed, by their test."""

import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location

from tests.needs import ROOT

SCRIPT = ROOT / "scripts" / "process_costs.py"
SPEC = spec_from_file_location("process_costs", SCRIPT)
process_costs = sys.modules["process_costs"] = module_from_spec(SPEC)
SPEC.loader.exec_module(process_costs)

ORPHAN = """
import os, signal, time
while time.process_time() < 1.0:
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_orphan_is_counted_for_the_test_that_started_it(tmp_path):
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    # The shell in the middle ends at once; a process has a number until its new parent has waited for it.
    orphan = f"PYTEST_CURRENT_TEST='tests/x.py::test_x (call)' setsid {sys.executable} -S {script} >/dev/null"
    command = f"pid=$({orphan} & echo $!); while kill -0 $pid 2>/dev/null; do sleep 0.02; done; exit 3"
    done = subprocess.run([sys.executable, SCRIPT, "bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert re.search(r"^ +[\d.]+ +1  tests/x\.py +python orphan\.py$", done.stdout, re.MULTILINE), done.stdout
    assert int(re.search(r"^(\d+) s of CPU", done.stdout, re.MULTILINE)[1]) >= 1


def test_kinds_tell_programs_apart():
    kinds = {
        "/venv/bin/python -P -m headrace worker worker.json": "python headrace worker",
        "/venv/bin/python3.11 /venv/bin/headrace up --port 1": "python headrace up",
        "python -u script.py 1 2": "python script.py",
        "python -c pass": "python -c 'pass'",
        "chromium --x --type=renderer": "chromium --type=renderer",
    }
    assert {line: process_costs.kind_of(line.split(" ")) for line in kinds} == kinds
