"""
The entry point of the child, run as a file: `PYTHON -P .../headrace_handler/__main__.py`.

The interpreter may be one in which Headrace is not installed, or is in another version. So the package is loaded from
the folder of this file, and nothing else that lies beside it becomes importable.
"""

import importlib.util
import sys
from pathlib import Path


def load_package() -> None:
    """Make the folder of this file the package `headrace_handler`."""
    folder = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        "headrace_handler", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None, "the file exists"
    assert spec.loader is not None, "it is a source file"
    package = importlib.util.module_from_spec(spec)
    sys.modules["headrace_handler"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    load_package()
    from headrace_handler.child import main

    main()
