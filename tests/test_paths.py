"""The page that lists the code on the path of a request and of a deployment is true."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts" / "paths.py"


def test_a_request_and_a_deployment_run_the_code_that_the_page_lists(smollm2_path):
    command = [sys.executable, str(SCRIPT), "--check", "--model", str(smollm2_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
