"""
TorchServe handlers: `handle(data, context)`, a class with `initialize` and `handle`, or a default handler by its name.

Source: pytorch/serve `ts/model_loader.py`, `ts/service.py`, `ts/protocol/otf_message_handler.py` and
`frontend/server/src/main/java/org/pytorch/serve/job/RestJob.java`. The names of the package `ts` are imported as users
import them, so that an installed `torchserve` is used instead of the stand-in.
"""

from headrace_handler.contracts.torchserve.service import TorchServe


def make() -> TorchServe:
    return TorchServe()
