"""Finding and loading the code of a `model.py`, and how failures of it are told."""

from typing import Any

import pytest

from headrace_handler.contract import LoadFailed
from tests.headrace_handler.djl_models import LoadModel, item, predict
from tests.headrace_handler.djl_models import load_model as load_model  # noqa: PLC0414 - a fixture


def test_running_out_of_memory_while_loading_is_reported_as_507(load_model: LoadModel) -> None:
    with pytest.raises(LoadFailed, match=r"^OOM: MemoryError$") as failure:
        load_model("def handle(inputs):\n    raise MemoryError\n")

    assert failure.value.status == 507


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def handle(inputs):\n    raise ValueError('no weights')", "invoke handler failure: ValueError: no weights"),
        ("def handle(inputs):\n    return 'x'", "invoke handler failure"),
        ("import sys\ndef handle(inputs):\n    sys.exit(3)", r"invoke handler failure: SystemExit: 3"),
        ("from djl_python import Output\ndef handle(inputs):\n    return Output(500, 'no')", "no"),
    ],
)
def test_a_handler_that_cannot_load_its_model_fails_the_load(load_model: LoadModel, code: str, message: str) -> None:
    with pytest.raises(LoadFailed, match=f"^Failed to initialize model: {message}"):
        load_model(code)


@pytest.mark.parametrize(
    ("code", "options", "entry", "message"),
    [
        (None, {}, "", r"\.py file not found in: "),
        (None, {}, "own.py", r"entry-point file not found .*own\.py\."),
        ("import deepspeed_of_nvidia", {}, "", r"model\.py cannot be imported: ModuleNotFound.*\(model\.py, line 1\)"),
        ("import sys\nsys.exit()", {}, "", r"model\.py cannot be imported: SystemExit"),
        ("x = 1", {}, "", r"model\.py has no function handle; expected `def handle\(inputs\)`"),
        ("x = 1", {"handler": "own"}, "", r"model\.py has no function own"),
        (None, {}, "djl_python.huggingface", r"option\.entryPoint is djl_python\.huggingface, which the server's"),
        (None, {}, "https://host/model.py", r"option\.entryPoint is https://host/model\.py; expected a file or module"),
        (None, {}, "no_such_module", r"no_such_module cannot be imported: ModuleNotFoundError"),
    ],
)  # fmt: skip
def test_code_that_is_not_there_or_cannot_be_imported_fails_the_load(
    load_model: LoadModel, code: str | None, options: dict[str, str], entry: str, message: str
) -> None:
    with pytest.raises(LoadFailed, match=message):
        load_model(code, options, entry=entry)


def test_the_module_is_named_model_and_runs_once(load_model: LoadModel, tmp_path: Any) -> None:
    (tmp_path / "sibling.py").write_text("import model\nimport own\nassert model is own\n")
    (tmp_path / "own.py").write_text(
        "from djl_python import Output\nruns = []\nruns.append(1)\n"
        "def handle(inputs):\n    import sibling\n    return Output().add(f'{__name__} {len(runs)}')\n"
    )

    contract = load_model(entry="own.py")

    assert predict(contract, item(b"x")).body == b"model 1"


def test_a_file_named_like_the_model_comes_before_model_py(load_model: LoadModel, tmp_path: Any) -> None:
    (tmp_path / "tiny.py").write_text(
        "from djl_python import Output\ndef handle(inputs):\n    return Output().add('tiny')\n"
    )

    assert predict(load_model("raise ValueError"), item(b"x")).body == b"tiny"


def test_an_entry_may_be_a_module_and_the_handler_another_function(load_model: LoadModel, tmp_path: Any) -> None:
    (tmp_path / "own_package.py").write_text(
        "from djl_python import Output\ndef go(inputs):\n    return Output().add('go')\n"
    )

    contract = load_model(None, {"handler": "go"}, entry="own_package")

    assert predict(contract, item(b"x")).body == b"go"
