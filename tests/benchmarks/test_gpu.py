"""The benchmark of a GPU measures a tiny network on a CPU."""

from benchmarks.gpu.run import SIZES, TINY, measure, table
from benchmarks.synthetic.make import write_folder


def test_every_cell_is_measured_on_a_cpu(tmp_path):
    write_folder(TINY, tmp_path / "model")
    results = measure(tmp_path / "model", SIZES["tiny"], device="cpu", dtype="fp32")
    for mode in ("fast", "batch_invariant"):
        cells = results[mode]["cells"]
        assert [(cell["kind"], cell["sequences"]) for cell in cells] == [
            ("decode", 1),
            ("decode", 8),
            ("decode", 64),
            ("prefill", 1),
        ]
        assert all(cell["step_s"] > 0 and cell["bandwidth_share"] > 0 and cell["compute_share"] > 0 for cell in cells)
    assert results["first_token_s"][0] > 0
    assert list(results["fast"]["rows_that_differ_in_a_batch"]) == ["1", "8", "64"]
    assert "| batch_invariant | decode | 64 |" in table(results)
