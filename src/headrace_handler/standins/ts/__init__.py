"""
The names of TorchServe's package `ts` that handlers import, for models that bring no `torchserve` of their own.

Written for Headrace by the documented behaviour of TorchServe 0.12. Imports inside are relative, because the package is
imported as `ts` by user code and by its full name in checks.
"""

__version__ = "0.12.0"
