"""A streamer for `transformers`' `generate` with batches."""

from typing import Any

from transformers.generation.streamers import BaseStreamer, TextIteratorStreamer


class _WordStreamer(TextIteratorStreamer):
    """
    A streamer whose texts end in a space or a new line, as those of transformers before 5.24.

    Readers of TorchServe's streams drop the last character of each chunk.
    """

    _held = ""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Pass on the whole words."""
        self._held += text
        is_cjk: Any = self._is_chinese_char
        is_complete = stream_end or self._held.endswith("\n") or (self._held and is_cjk(ord(self._held[-1])))
        end = len(self._held) if is_complete else self._held.rfind(" ") + 1
        words, self._held = self._held[:end], self._held[end:]
        super().on_finalized_text(words, stream_end)


class TextIteratorStreamerBatch(BaseStreamer):
    """
    The texts that a batch generates, step by step: an iterator of lists with one piece for each sequence.

    Pieces are strings, as in TorchServe until 0.9, and go unchanged to `send_intermediate_predict_response`.
    After its end the object serves the next call of `generate`.
    """

    def __init__(
        self,
        tokenizer: Any,
        batch_size: int,
        skip_prompt: bool = False,
        timeout: float | None = None,
        **decode_kwargs: Any,
    ) -> None:
        self.batch_size = batch_size
        self.streamers: list[Any] = [
            _WordStreamer(tokenizer, skip_prompt, timeout, **decode_kwargs) for _ in range(batch_size)
        ]

    def put(self, value: Any) -> None:
        """Take the next token of each sequence, or their prompts."""
        if value.shape[0] != self.batch_size:
            raise ValueError(
                f"TextIteratorStreamerBatch batch size is set to {self.batch_size} "
                f"but got input tensor of shape {tuple(value.shape)}"
            )
        for index, streamer in enumerate(self.streamers):
            streamer.put(value[index : index + 1])

    def end(self) -> None:
        for streamer in self.streamers:
            streamer.end()

    def __iter__(self) -> "TextIteratorStreamerBatch":
        return self

    def __next__(self) -> list[str]:
        """Wait for the next piece of each sequence. All sequences take and end their steps together."""
        pieces: list[Any] = [next(streamer, None) for streamer in self.streamers]
        if None in pieces:
            raise StopIteration
        return pieces
