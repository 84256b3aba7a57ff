"""
Redirects clients of botocore that name an address of AWS to the platform.

Every Python of a shell that ran `eval "$(headrace env)"` loads this file, because its folder is on PYTHONPATH.

The SageMaker SDKs (2.x, 3.x, and `sagemaker_core` alone) ask STS at an address of AWS that they compute themselves,
which no environment variable changes. When botocore is imported, its function that creates clients is replaced by one
that drops such an address while `AWS_ENDPOINT_URL` is set: the client then has the address in that variable. Nothing is
imported, and nothing else is changed. Standard library only, any Python from 3.8 up: this runs in environments that
have no Headrace.
"""

# ruff: noqa: INP001, PTH100, PTH120
# (no package, as Python finds it by its name on the path; pathlib would be imported into every program)

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MODULE = "botocore.session"
_AWS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
_VARIABLE = "AWS_ENDPOINT_URL"
_MARK = "is_headrace"


def is_of_aws(url: object) -> bool:
    """Return whether a URL is one of AWS's."""
    if not isinstance(url, str):
        return False
    host = url.partition("://")[2].partition("/")[0].partition(":")[0]
    return host.lower().endswith(_AWS)


def redirect(module: ModuleType) -> None:
    """Replace the function of botocore's sessions that creates clients, once."""
    session = module.Session
    original = session.create_client
    if hasattr(original, _MARK):
        return

    def create_client(self: object, *args: object, **kwargs: object) -> object:
        """Create a client, of the platform where an address of AWS is named."""
        if os.environ.get(_VARIABLE) and is_of_aws(kwargs.get("endpoint_url")):
            kwargs["endpoint_url"] = None
        return original(self, *args, **kwargs)

    setattr(create_client, _MARK, True)
    session.create_client = create_client


class EndpointRedirect:
    """Finds botocore's module as Python would, and replaces the function after it was executed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of the module; called by the import system."""
        if name != MODULE:
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
    sys.meta_path.insert(0, EndpointRedirect)
    _next_sitecustomize()
