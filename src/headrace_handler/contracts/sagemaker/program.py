"""Find and import the module of the user's functions."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from headrace_handler.contract import Load, LoadFailed


def import_program(load: Load) -> ModuleType | None:
    """
    Import the program once, under its own name, as pickles of its classes expect.

    Its folder, `code/` and the model's folder come first on `sys.path`.

    Returns:
        None for a model without a program, which its image's functions serve.

    Raises:
        LoadFailed: the named program does not exist, or has the name of a module that is already imported.
    """
    folders = [load.model_dir / "code", load.model_dir]
    if not load.entry:
        _put_first(folders)
        return None
    path = _find(load.entry, folders)
    _put_first(dict.fromkeys([path.parent, *folders]))
    imported = sys.modules.get(path.stem)
    if imported is not None and Path(getattr(imported, "__file__", None) or "").resolve() != path.resolve():
        raise LoadFailed(500, f"The program {path.name} has the name of a module in use. Rename it.")
    return importlib.import_module(path.stem)


def _find(entry: str, folders: list[Path]) -> Path:
    name = entry if entry.endswith(".py") else f"{entry.replace('.', '/')}.py"
    for folder in folders:
        path = folder / name  # an absolute name stays what it is
        if path.is_file():
            return path
    searched = " and ".join(str(folder) for folder in folders)
    raise LoadFailed(500, f"The program {entry} (SAGEMAKER_PROGRAM) does not exist; expected it in {searched}.")


def _put_first(folders: dict[Path, None] | list[Path]) -> None:
    names = [str(folder) for folder in folders if folder.is_dir()]
    sys.path[:] = [*names, *(name for name in sys.path if name not in names)]
    importlib.invalidate_caches()
