"""Streams of text from models of transformers."""

import logging
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any

from headrace_handler.client_data import check_parameters

logger = logging.getLogger(__name__)

_SAMPLING = ("temperature", "top_p", "top_k", "typical_p")


class StreamClosed(Exception):
    """The client of a stream has disconnected."""


class HFStreamer:
    """
    A streamer for `generate` that is iterated: each item is a list with the next text of every sequence.

    The first item is the prompts.
    """

    def __init__(self, tokenizer: Any, **decode_kwargs: Any) -> None:
        self.tokenizer = tokenizer
        self.decode_kwargs = decode_kwargs
        self.queue: SimpleQueue[Any] = SimpleQueue()
        self.is_closed = False

    def put(self, value: Any) -> None:
        """
        Take the prompts' tokens, then one token of every sequence at a time.

        Raises `StreamClosed`: the client has disconnected; the generation ends.
        """
        if self.is_closed:
            raise StreamClosed
        rows = value if value.ndim > 1 else value.unsqueeze(-1)
        self.queue.put([self.tokenizer.decode(row, **self.decode_kwargs) for row in rows])

    def put_text(self, value: str) -> None:
        self.queue.put(value)

    def end(self) -> None:
        self.queue.put(None)

    def close(self) -> None:
        """Stop the generation at its next token."""
        self.is_closed = True

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        value = self.queue.get()
        if value is None:
            raise StopIteration
        return value


class StreamingUtils:
    """Generation by a model and a tokenizer of transformers, in another thread."""

    DEFAULT_MAX_NEW_TOKENS = 50
    BUILTIN_ENGINES = frozenset({"Accelerate"})

    @staticmethod
    def use_hf_default_streamer(model: Any, tokenizer: Any, inputs: Any, device: Any, **kwargs: Any) -> HFStreamer:
        """Generate, and return the texts as they come, the prompts first; an error becomes the last text."""
        check_parameters(kwargs)
        if not tokenizer.pad_token:
            tokenizer.pad_token = tokenizer.eos_token
        tokens = tokenizer(inputs, padding=True, return_tensors="pt").to(model.device if device is None else device)
        streamer = HFStreamer(tokenizer, skip_special_tokens=True)

        def generate() -> None:
            try:
                model.generate(**tokens, streamer=streamer, **kwargs)
            except StreamClosed:
                logger.info("The client has gone: the generation ends.")
            except Exception as error:
                logger.exception("stream generation failed")
                streamer.put_text(str(error))
            finally:
                streamer.end()

        Thread(target=generate, name="generate", daemon=True).start()
        return streamer

    @staticmethod
    def get_stream_generator(execution_engine: str) -> Callable[..., Iterator[Any]]:
        """
        Return a function `(model, tokenizer, inputs, device, **parameters)` that yields lists of texts.

        Raises `ValueError`: the engine is not `Accelerate`.
        """
        if execution_engine not in StreamingUtils.BUILTIN_ENGINES:
            raise ValueError(f"{execution_engine} engine is not supported for streaming")
        return _generate


def _generate(model: Any, tokenizer: Any, inputs: Any, device: Any, **kwargs: Any) -> Iterator[Any]:
    if kwargs.pop("beam_size", 1) > 1:
        raise NotImplementedError("beam search is not supported yet!")
    if "manual_seed" in kwargs:
        import torch

        torch.manual_seed(kwargs.pop("manual_seed"))
    kwargs.setdefault("max_new_tokens", StreamingUtils.DEFAULT_MAX_NEW_TOKENS)
    kwargs.setdefault("do_sample", any(name in kwargs for name in _SAMPLING))
    streamer = StreamingUtils.use_hf_default_streamer(model, tokenizer, inputs, device, **kwargs)
    try:
        next(streamer)  # the prompts
        yield from streamer
    finally:
        streamer.close()
