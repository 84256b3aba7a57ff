"""The benchmark of backends starts one, measures it and writes its table."""

import json
from pathlib import Path

from benchmarks.backends.run import main

from tests.parity.checkpoints import write_checkpoint


def test_a_backend_is_started_measured_and_stopped(tmp_path: Path) -> None:
    model, output = tmp_path / "model", tmp_path / "backends"
    write_checkpoint("llama", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024}))
    main([str(model), "--backends", "native", "--rounds", "1", "--requests", "8", "--output", str(output)])
    (turn,) = json.loads(output.with_suffix(".json").read_text())["turns"]
    assert turn["backend"] == "native"
    assert turn["start_s"] > 0
    assert all(turn["tokens_per_s"][users] > 0 and turn["ttft_ms"][users] > 0 for users in ("1", "8"))
    assert "| native |" in output.with_suffix(".md").read_text()
