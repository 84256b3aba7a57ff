"""
Redirects the SageMaker SDKs' calls of STS to the platform.

Every Python of a shell that ran `eval "$(headrace env)"` loads this file, because its folder is on PYTHONPATH.

The SageMaker SDKs ask STS at an address of AWS that no environment variable changes (2.x: `sagemaker.utils`, 3.x:
`sagemaker.core`). When one of those modules is imported, its function for that address is replaced by one that gives
the address in `AWS_ENDPOINT_URL`. Nothing is imported, and nothing else is changed. Standard library only, any Python
from 3.8 up: this runs in environments that have no Headrace.
"""

# ruff: noqa: INP001, PTH100, PTH120
# (no package, as Python finds it by its name on the path; pathlib would be imported into every program)

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

FUNCTION = "sts_regional_endpoint"
MODULES = frozenset(
    {
        "sagemaker.utils",
        "sagemaker.session",
        "sagemaker.core.common_utils",
        "sagemaker.core.helper.session_helper",
    }
)
_MARK = "is_headrace"


def _redirected(original: Callable[[str], str]) -> Callable[[str], str]:
    def sts_regional_endpoint(region: str) -> str:
        """The address of STS: the platform's while this shell points at one."""
        return os.environ.get("AWS_ENDPOINT_URL_STS") or os.environ.get("AWS_ENDPOINT_URL") or original(region)

    setattr(sts_regional_endpoint, _MARK, True)
    return sts_regional_endpoint


def redirect(module: ModuleType) -> None:
    """Replace the function of one of the SDKs' modules, once."""
    original = getattr(module, FUNCTION, None)
    if original is not None and not hasattr(original, _MARK):
        setattr(module, FUNCTION, _redirected(original))


class StsRedirect:
    """Finds the SDKs' modules as Python would, and replaces the function after they were executed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of one of the SDKs' modules; called by the import system."""
        if name not in MODULES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            redirect(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _next_sitecustomize() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    spec = PathFinder.find_spec("sitecustomize", paths)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":  # not where `headrace.testing` loads this file for a process that already runs
    sys.meta_path.insert(0, StsRedirect)
    _next_sitecustomize()
