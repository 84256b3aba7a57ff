"""
The entry point of the child, run as a file: `PYTHON -P .../headrace_handler/__main__.py`.

With `--run POLICY PROGRAM ARGUMENTS` it runs a program in a sandbox instead; with `--survey` it prints which parts of a
sandbox can be had here.

The interpreter may be one in which Headrace is not installed, or is in another version. So the package is loaded from
the folder of this file, and nothing else that lies beside it becomes importable.
"""

import importlib.util
import os
import sys


def load_package() -> None:
    """Make the folder of this file the package `headrace_handler`."""
    folder = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 -- pathlib costs milliseconds here
    spec = importlib.util.spec_from_file_location(
        "headrace_handler", f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    assert spec is not None, "the file exists"
    assert spec.loader is not None, "it is a source file"
    package = importlib.util.module_from_spec(spec)
    sys.modules["headrace_handler"] = package
    spec.loader.exec_module(package)


def run() -> None:
    """Enter the sandbox, if there is one, then run the child or the program: it must precede most imports."""
    from headrace_handler import sandbox

    if sys.argv[1:2] == ["--run"]:
        sandbox.run_program(sys.argv[2], sys.argv[3:])
    if sys.argv[1:] == ["--survey"]:
        sandbox.survey()
    given = [argument.removeprefix(sandbox.ARGUMENT) for argument in sys.argv if argument.startswith(sandbox.ARGUMENT)]
    entered = sandbox.enter(sandbox.decode(given[0])) if given else None
    from headrace_handler.child import main

    main(entered)


if __name__ == "__main__":
    load_package()
    run()
