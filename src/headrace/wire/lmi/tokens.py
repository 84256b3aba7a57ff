"""Tokens and sequence details in the format of each LMI version, with the JSON spacing of Python's `json`."""

import json
from dataclasses import dataclass

from headrace.core.generation import Finish, FinishReason, Token, TokenLogprob
from headrace.wire.answers import FinishedChoice, finite_logprob
from headrace.wire.framing import json_number, one_line, to_json
from headrace.wire.lmi.parameters import Version

_VLLM_REASONS = {FinishReason.LENGTH: "length", FinishReason.EOS: "stop", FinishReason.STOP: "stop"}


def spaced_json(value: object) -> bytes:
    """Encode JSON with the spacing of Python's `json.dumps(value, ensure_ascii=False)`."""
    return one_line(json.dumps(value, ensure_ascii=False).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class LmiOptions:
    """Options of the request and the settings for the format of the answer."""

    version: Version
    form: str
    """The formatter: json, jsonlines or sse."""
    stream: bool
    is_batch: bool
    """True if `inputs` was a list."""
    in_array: bool
    """True if `tgi_compat` is on: a list of one object, and TGI's names in tokens."""
    details: bool
    top_tokens: bool
    with_special: bool
    prompts: tuple[str, ...]
    return_full_text: bool

    def prefix(self, request: int) -> str:
        """Return the text before the generated text."""
        return self.prompts[request] if self.return_full_text else ""

    def reason(self, finish: Finish) -> str:
        """Return `finish_reason`: TGI's values up to 16, vLLM's from 17."""
        return _VLLM_REASONS[finish.reason] if self.version == "17" else finish.reason.value

    def text_of(self, token: Token | TokenLogprob) -> str:
        """Return the text of a token; special tokens have none."""
        return "" if token.special and not self.with_special else token.text

    def token(
        self, token: Token | TokenLogprob, *, is_prompt: bool = False, may_lack_text: bool = False
    ) -> dict[str, object]:
        """
        Return one token as an object.

        NOTE: 0.26 omitted empty and 0 values. Here the logprob is always present, and the text except on the last line
        with details: published clients read both unconditionally, and recognise the last line by the missing text.
        """
        text = token.text if is_prompt else self.text_of(token)
        logprob = finite_logprob(token.logprob)
        written: dict[str, object]
        if self.version == "17" or self.in_array:
            written = {"id": token.id, "text": text, "logprob": logprob}
            return {**written, "special": True} if self.in_array and token.special else written
        written = {"id": token.id, "text": text, "log_prob": logprob}
        if token.special:
            written["special_token"] = True
        if self.version != "0.26":
            return written
        kept = {"log_prob"} if may_lack_text else {"log_prob", "text"}
        return {key: value for key, value in written.items() if value or (key in kept and value is not None)}

    def token_json(self, token: Token) -> bytes:
        """Render `token` as bytes, without msgspec: this runs for every token of every stream."""
        if token.special or (self.version == "0.26" and (token.id == 0 or token.logprob is None)):
            return spaced_json(self.token(token))
        return b'{"id": %d, "text": %b, "%b": %b}' % (
            token.id,
            to_json(token.text),
            b"logprob" if self.version == "17" or self.in_array else b"log_prob",
            json_number(finite_logprob(token.logprob)),
        )

    def stream_details(self, finish: Finish, request: int, tokens: list[Token]) -> dict[str, object]:
        """Return `details` for the last line of a stream."""
        details: dict[str, object] = {"finish_reason": self.reason(finish)}
        if self.version == "0.26":
            if self.form == "json":
                details["tokens"] = [self.token(token, may_lack_text=True) for token in tokens]
        elif self.version == "17":
            details["seed"] = finish.seed
            details["generated_tokens"] = finish.output_tokens
            details["input_length"] = finish.prompt_tokens
        else:
            details["generated_tokens"] = finish.output_tokens
            details["inputs"] = self.prompts[request]
        return details

    def sequence_details(
        self, choice: FinishedChoice, prompt: tuple[Token, ...] | None, request: int
    ) -> dict[str, object]:
        """Return `details` of a whole answer."""
        tokens = [self.token(token) for token in choice.tokens]
        prefill = [self.token(token, is_prompt=True) for token in prompt or ()]
        details: dict[str, object] = {
            "finish_reason": self.reason(choice.finish),
            "generated_tokens": choice.finish.output_tokens,
        }
        if self.version == "17":
            details.update(seed=choice.finish.seed, prefill=prefill, tokens=tokens)
        else:
            details.update(inputs=self.prompts[request], tokens=tokens)
            if prompt is not None:
                details["prefill"] = prefill
        if self.top_tokens:
            details["top_tokens"] = [[self.token(top) for top in token.top] for token in choice.tokens]
        return details
