"""
SageMaker's inference toolkits: `inference.py` with `model_fn`, `input_fn`, `predict_fn` and `output_fn`.

`profiles` defines how each image calls the functions, its default functions, and its error texts.
"""

import logging
from typing import Any

from headrace_handler.contract import Call, Cancelled, Contract, Item, Load, LoadFailed

from . import profiles
from .responses import Response, prefetch, send
from .user_code import context_of_item, import_program, prepare_process, report_metrics

_log = logging.getLogger(__name__)


class SageMakerContract:
    """One model behind the functions of its `inference.py` and those of its image."""

    _profile: profiles.Profile

    def load(self, load: Load) -> None:
        try:
            prepare_process(load)
            self._profile = profiles.create(load, import_program(load))
            self._profile.load()
        except LoadFailed:
            raise
        except MemoryError as error:
            raise LoadFailed(507, f"MemoryError: {error}") from error
        except Exception as error:
            raise LoadFailed(500, f"{type(error).__name__}: {error}") from error

    def call(self, call: Call) -> None:
        for item in call.items:
            self._answer(call.mode, item)

    def _answer(self, mode: str, item: Item) -> None:
        context = context_of_item(self._profile.base_context, item)
        try:
            # The first part of a stream is computed here, so that its error still gets a status.
            response = prefetch(self._respond(mode, item, context))
        except Cancelled:
            return
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            _log.exception("Request %s failed", item.request_id)
            response = prefetch(self._profile.fail(error))
        send(item.reply, response)
        report_metrics(context)

    def _respond(self, mode: str, item: Item, context: Any) -> Response:
        if item.path == "/execution-parameters":
            return self._profile.execution_parameters()
        if mode != "predict":
            return Response.of_text(
                501, f"The mode {mode} is not part of SageMaker's inference.py; expected predict.\n"
            )
        return self._profile.answer(item, context)


def make() -> Contract:
    return SageMakerContract()
