import importlib
import sys
from pathlib import Path
from typing import Any

from . import _env, _errors

DEFAULT_MODULE_NAME = "default_user_module_name"


def exists(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def has_requirements(path: str) -> bool:
    return Path(path, "requirements.txt").exists()


def import_module(uri: str, name: str = DEFAULT_MODULE_NAME, cache: Any = None) -> Any:  # noqa: ARG001
    """
    Import a module of a local folder.

    The original downloads and installs a package first; here code and requirements are in place before the process
    starts.

    Raises:
        ImportModuleError: the module cannot be imported.
    """
    folder = _env.code_dir if uri.startswith("s3://") else uri
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise _errors.ImportModuleError(error) from error
