"""The version of TorchServe whose behaviour this package has."""

from . import __version__

__all__ = ["__version__"]
