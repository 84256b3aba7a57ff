"""All kinds of user code that a model may bring reach nothing outside: the same attacks, in real children."""

import ast
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.serving.artifacts.content_cache import ContentCache
from headrace.serving.handlers.assembly import install_packages, plan_handler
from headrace.serving.handlers.environment import EnvironmentMaker, inspect_base
from headrace.serving.handlers.errors import LoadError
from headrace.serving.handlers.found import find_model
from headrace.serving.handlers.isolation import Isolation
from headrace.serving.handlers.pool import HandlerPool
from headrace.serving.handlers.requirements_file import read_requirements
from tests.headrace_handler.hostile_site import HOSTILE, left_over, need_victims, place_for, reached, victim_in
from tests.waiting import WAIT_S

MARK = "outcomes of attacks: "
ATTACK = f"""
import json, pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).parent))
from hostile import attack
def run():
    facts = json.loads(pathlib.Path(__file__).with_name("facts.json").read_text())
    print({MARK!r} + json.dumps(attack(facts)), flush=True)
"""
MANIFEST = '{"model": {"modelName": "m", "modelVersion": "1.0", "handler": "own.py"}, "runtime": "python"}'
CODE = {
    "inference.py of a SageMaker toolkit": {"inference.py": "run()\ndef model_fn(folder):\n    return 1\n"},
    "training code of a SageMaker toolkit": {
        "code/inference.py": "def model_fn(folder):\n    run()\n    return 1\n",
    },
    "model.py of DJL": {"model.py": "def handle(inputs):\n    run()\n"},
    "an input formatter of LMI": {
        "model.py": "from djl_python.input_parser import input_formatter\nrun()\n"
        "@input_formatter\ndef read(payload, **kwargs):\n    return payload\n",
    },
    "an output formatter of LMI": {
        "model.py": "from djl_python.output_formatter import output_formatter\nrun()\n"
        "@output_formatter\ndef write(output):\n    return output\n",
    },
    "a handler of TorchServe": {
        "own.py": "class Own:\n    def initialize(self, context):\n        run()\n"
        "    def handle(self, data, context):\n        return data\n",
        "MAR-INF/MANIFEST.json": MANIFEST,
    },
    "a module that Python imports at its start": {
        "sitecustomize.py": "import os\nos.environ.pop('PYTHONPATH')\nrun()\n",
        "model.py": "def handle(inputs):\n    pass\n",
        "serving.properties": "option.env=PYTHONPATH={model}\n",
    },
    "an interpreter that the model brings": {
        "python": "#!/bin/sh\nexec /usr/bin/python3 -I {model}/attack.py\n",
        "attack.py": "run()\n",
        "model.py": "def handle(inputs):\n    pass\n",
        "serving.properties": "option.pythonExecutable={model}/python\n",
    },
}
"""Kind of code → its files, without `ATTACK`."""
BACKEND = """
import json, pathlib, sys, zipfile
from hostile import attack
def build_wheel(folder, config_settings=None, metadata_directory=None):
    seen = attack(json.loads(pathlib.Path("facts.json").read_text()))
    with zipfile.ZipFile(f"{folder}/evil-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("evil.py", f"SEEN = {seen!r}")
        wheel.writestr("evil-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: evil\\nVersion: 1.0\\n")
        wheel.writestr("evil-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("evil-1.0.dist-info/RECORD", "")
    return "evil-1.0-py3-none-any.whl"
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "evil"
version = "1.0"
"""


@pytest.fixture(scope="module")
def facts() -> Iterator[dict[str, str]]:
    need_victims()
    with place_for([]) as folder, victim_in(folder, []) as found:
        yield {**found, "most_bytes": str(1 << 20), "most_processes": "4"}


@pytest.mark.parametrize("kind", CODE)
async def test_no_code_of_a_model_reaches_anything_outside(kind: str, facts: dict[str, str], tmp_path: Path) -> None:
    model = tmp_path / "model"
    for name, code in CODE[kind].items():
        place = model / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(ATTACK + code if "run()" in code else code.replace("{model}", str(model)))
        place.chmod(0o755)
        if name.endswith(".py"):
            shutil.copy(HOSTILE, place.parent)
            place.with_name("facts.json").write_text(json.dumps({**facts, "model": str(model)}))
    (model / "weights").write_bytes(b"weights")
    isolation = Isolation(is_on=True, is_required=True, network="loopback", max_processes=320)
    found = replace(find_model(model, model_name="m", env={"PATH": os.environ["PATH"]}), isolation=isolation)
    spec = install_packages(plan_handler(found), tmp_path / "cache")
    pool = HandlerPool(spec)
    with suppress(LoadError):  # of an interpreter that is none
        await pool.start()
    await pool.close(deadline_s=0)
    lines = "".join(pool.tail)
    seen = json.JSONDecoder().raw_decode(lines.partition(MARK)[2])[0]
    assert len(seen) > 40
    assert not reached({name: said for name, said in seen.items() if isinstance(said, str)})
    assert not left_over(facts["marker"])
    assert (model / "weights").read_bytes() == b"weights"


def test_the_build_of_a_package_that_a_model_requires_reaches_nothing_outside(
    facts: dict[str, str], tmp_path: Path
) -> None:
    package = tmp_path / "model" / "evil"
    package.mkdir(parents=True)
    for name, text in (("backend.py", BACKEND), ("pyproject.toml", PYPROJECT), ("weights", "weights")):
        (package / name).write_text(text)
    shutil.copy(HOSTILE, package)
    (package / "facts.json").write_text(json.dumps({**facts, "model": str(package)}))
    (tmp_path / "model" / "requirements.txt").write_text("./evil\n")
    wanted = read_requirements(tmp_path / "model" / "requirements.txt")
    assert wanted is not None
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_NO_INDEX": "1"}
    maker = EnvironmentMaker(
        cache=ContentCache(tmp_path / "cache"),
        timeout_s=WAIT_S,
        variables=variables,
        is_offline=True,
        isolation=Isolation(is_on=True, is_required=True, max_processes=320),
    )
    python = maker.python_for(wanted, inspect_base())
    shown = subprocess.run([python, "-P", "-c", "import evil; print(repr(evil.SEEN))"], capture_output=True, check=True)
    seen = ast.literal_eval(shown.stdout.decode())
    assert not reached({name: said for name, said in seen.items() if isinstance(said, str)})
    assert not left_over(facts["marker"])
    assert (package / "weights").read_text() == "weights"
