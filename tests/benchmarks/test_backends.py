"""The benchmark of backends starts one, measures it and writes its table."""

import json
from pathlib import Path

import pytest
from benchmarks.backends.run import main

pytestmark = pytest.mark.model


def test_a_backend_is_started_measured_and_stopped(smollm2_folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "backends"
    main([str(smollm2_folder), "--backends", "native", "--rounds", "1", "--requests", "8", "--output", str(output)])
    (turn,) = json.loads(output.with_suffix(".json").read_text())["turns"]
    assert turn["backend"] == "native"
    assert turn["start_s"] > 0
    assert all(turn["tokens_per_s"][users] > 0 and turn["ttft_ms"][users] > 0 for users in ("1", "8"))
    assert "| native |" in output.with_suffix(".md").read_text()
