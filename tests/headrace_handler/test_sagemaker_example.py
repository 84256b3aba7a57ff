"""The model of `examples/custom_code/sagemaker`, trained and served."""

import runpy
import sys
from pathlib import Path

import pytest

from tests.headrace_handler.sagemaker_models import load
from tests.headrace_handler.sagemaker_models import sagemaker_imports as sagemaker_imports  # noqa: PLC0414 - a fixture
from tests.headrace_handler.support import call

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "custom_code" / "sagemaker"


@pytest.mark.usefixtures("sagemaker_imports")
def test_the_example_tells_irises_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(sys, "argv", ["train.py", str(tmp_path)])
    runpy.run_path(str(EXAMPLE / "train.py"))
    contract = load(tmp_path, "sklearn")

    (told,) = call(contract, b"5.1,3.5,1.4,0.2\n6.3,3.3,6.0,2.5\n", content_type="text/csv")
    (table,) = call(
        contract, b"[[5.1, 3.5, 1.4, 0.2]]", content_type="application/json", headers=[("Accept", "text/csv")]
    )

    assert [row["label"] for row in told.json] == ["setosa", "virginica"]
    assert all(row["probability"] > 0.9 for row in told.json)
    assert table.body.startswith(b"setosa,0.9")
