"""
Submodules of stand-ins, made from a table.

The libraries that stand-ins imitate spread their names over many modules, all of which users' code may import. A
stand-in has them in few files, and each further module is a namespace with some of a file's names.
"""

import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType


def add_submodules(package: str, names: Mapping[str, str], *, source: str | None = None) -> None:
    """
    Make submodules of a package importable.

    Classes and functions tell the submodule as their `__module__`, as in the library: model servers find the classes of
    a handler by it, and pickles refer to it.

    Args:
        package: the package's `__name__`.
        names: submodule, relative to the package → the names in it, separated by spaces.
        source: the module that has these names; None: the package.
    """
    origin = sys.modules[source or package]
    for submodule, exported in names.items():
        full_name = f"{package}.{submodule}"
        module = sys.modules[full_name] = ModuleType(full_name)
        module.__spec__ = ModuleSpec(full_name, None)
        for name in exported.split():
            value = getattr(origin, name)
            if getattr(value, "__module__", None) == origin.__name__:
                value.__module__ = full_name
            setattr(module, name, value)
        parent, _, last = full_name.rpartition(".")
        setattr(sys.modules[parent], last, module)
