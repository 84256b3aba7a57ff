"""Load the code of a model and call it, with the properties and errors of DJL Serving."""

import asyncio
import importlib
import inspect
import json
import logging
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

from headrace_handler.contract import Call, Contract, Item, Load, LoadFailed
from headrace_handler.contracts.djl import messages
from headrace_handler.contracts.djl.asynchronous import FAILURE, RollingBatch, Sender
from headrace_handler.contracts.djl.code import UserCode, describe, load_code
from headrace_handler.contracts.djl.formatters import Formatters, Tokenizer

logger = logging.getLogger(__name__)

_OVERRIDE_VARIABLE = "ALLOW_REQUEST_HANDLER_OVERRIDE"
_MAX_ROLLING_BATCH_SIZE = 32
_NO_ROLLING_BATCH = {"", "disable", "false"}


def make() -> Contract:
    return DjlContract()


class DjlContract:
    """A model whose code has a `handle(inputs)`, or only formatters for the server's own engine."""

    def __init__(self) -> None:
        self._djl = importlib.import_module("djl_python")  # the user's own package, if there is one
        self._loop: asyncio.AbstractEventLoop | None = None
        self._code: UserCode
        self._formatters: Formatters
        self._sender: Sender
        self._rolling_batch: RollingBatch | None = None
        self._common: dict[str, Any] = {}

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of an `async def handle` or a rolling batch; None: the code is synchronous."""
        return self._loop

    def load(self, load: Load) -> None:
        self._code = code = load_code(load)
        self._common = _common_properties(load, code)
        request_io = importlib.import_module("djl_python.request_io")
        tokenizer = Tokenizer(load.options.get("model_id") or str(load.model_dir))
        self._formatters = Formatters(self._djl, request_io, code, tokenizer, load.options)
        # Formatters alone run around the server's engine, and need neither a loop nor a warm-up.
        is_rolling = load.options.get("rolling_batch", "").lower() not in _NO_ROLLING_BATCH
        if not code.has_handler:
            return
        if is_rolling or code.is_async or load.options.get("async_mode", "").lower() == "true":
            # `load` and all calls share one loop, because handlers keep locks and clients that belong to it.
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
            self._sender = Sender(self._loop, self._djl)
        if is_rolling:
            size = int(load.options.get("max_rolling_batch_size") or _MAX_ROLLING_BATCH_SIZE)
            self._rolling_batch = RollingBatch(self._step, self._sender, size)
        self._warm_up(load)

    def call(self, call: Call) -> None:
        if call.mode == "format":
            for item in call.items:
                self._formatters.answer(item)
        elif call.mode == "describe":
            formatters = json.dumps({"formatters": self._formatters.kinds}).encode()
            for item in call.items:
                output = self._djl.Output().add_property("Content-Type", "application/json")
                messages.send_one(output.add(formatters), item.reply, self._djl)
        elif call.mode == "adapter":
            for item in call.items:
                self._call_function(messages.requested_handler(item) or "", [item])
        else:
            items = [item for item in call.items if self._is_allowed(item)]
            if items:
                self._call_function(self._function_of(items), items)

    async def call_async(self, call: Call) -> None:
        if call.mode in {"format", "describe"}:
            await asyncio.get_running_loop().run_in_executor(None, self.call, call)
        elif call.mode == "adapter":
            await asyncio.gather(*(self._answer(item, messages.requested_handler(item) or "") for item in call.items))
        else:
            items = [item for item in call.items if self._is_allowed(item)]
            await asyncio.gather(*map(self._answer_prediction, items))

    def _warm_up(self, load: Load) -> None:
        """Let the handler load its model: the call without content."""
        inputs = messages.make_warm_up(self._djl, load.options, self._common)
        try:
            output = getattr(self._code.module, self._code.handler)(inputs)
            if self._loop is not None:
                output = self._loop.run_until_complete(_result(output))
        except (Exception, SystemExit) as error:
            failure = error if isinstance(error, Exception) else RuntimeError(f"sys.exit({error})")
            output = messages.failed(self._djl, failure)
            raise LoadFailed(_status(output), _load_error(output, describe(error))) from error
        output = messages.checked(self._djl, output)
        if output.code >= 300:
            raise LoadFailed(_status(output), _load_error(output, str(messages.body_of(output), "utf-8", "replace")))

    def _call_function(self, name: str, items: Sequence[Item]) -> None:
        common = {**self._common, "handler": name}
        try:
            inputs = messages.make_inputs(self._djl, items, common)
            output = messages.checked(self._djl, getattr(self._code.module, name)(inputs))
        except Exception as error:
            logger.exception("Failed invoke service.invoke_handler()")
            output = messages.failed(self._djl, error)
        messages.send(output, [item.reply for item in items], self._djl)

    async def _answer_prediction(self, item: Item) -> None:
        if self._rolling_batch is None:
            await self._answer(item, self._function_of([item]))
        else:
            await self._rolling_batch.answer(item)

    async def _answer(self, item: Item, name: str) -> None:
        output = await self._invoke(name, messages.make_input(self._djl, item, {**self._common, "handler": name}))
        if isinstance(output, AsyncIterator):
            await self._sender.send_stream(output, item.reply)
        else:
            await self._sender.send(messages.checked(self._djl, output), item.reply)

    async def _step(self, items: Sequence[tuple[Item, bool]], is_reset: bool) -> Any:
        inputs = messages.make_step(self._djl, items, self._common, is_reset=is_reset)
        return messages.checked(self._djl, await self._invoke(self._code.handler, inputs))

    async def _invoke(self, name: str, inputs: Any) -> Any:
        try:
            output = getattr(self._code.module, name)(inputs)
            return await output if inspect.isawaitable(output) else output
        except Exception as error:
            logger.exception("Failed invoke service.invoke_handler_async()")
            return messages.failed(self._djl, error, message=FAILURE)

    def _is_allowed(self, item: Item) -> bool:
        """Return whether a request may be answered; refuse one that chooses its function."""
        if messages.requested_handler(item) is None or os.environ.get(_OVERRIDE_VARIABLE, "").lower() == "true":
            return True
        messages.send_error(item.reply, 400, "BadRequestException", "The handler can't be overridden in a request")
        return False

    def _function_of(self, items: Sequence[Item]) -> str:
        requested = messages.requested_handler(items[0]) if len(items) == 1 else None
        return requested or self._code.handler


def _common_properties(load: Load, code: UserCode) -> dict[str, Any]:
    """Return the properties that the server adds to those of a request."""
    degree = load.options.get("tensor_parallel_degree", "")
    common: dict[str, Any] = {
        "device_id": str(-1 if load.device is None else load.device),
        "tensor_parallel_degree": int(degree) if degree.isdecimal() else 1,
        "cluster_size": 1,
        "model_dir": str(load.model_dir),
        "handler": code.handler,
    }
    formatters = {"input_formatter": code.input_formatter, "output_formatter": code.output_formatter}
    return common | {name: function for name, function in formatters.items() if function is not None}


async def _result(output: Any) -> Any:
    """Return what an asynchronous handler returns, or yields first."""
    if isinstance(output, AsyncIterator):
        return await anext(output, None)
    return await output if inspect.isawaitable(output) else output


def _status(output: Any) -> int:
    return 507 if output.code == 507 else 500


def _load_error(output: Any, detail: str) -> str:
    message = "OOM" if output.code == 507 else f"Failed to initialize model: {output.message}"
    return f"{message}: {detail}" if detail else message
