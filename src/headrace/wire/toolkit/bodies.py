"""The body of the toolkit: `inputs` and the `parameters` of a pipeline, as `predict` takes them apart."""

from typing import TypeVar

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.generation import PoolingParams
from headrace.core.model_kinds import PoolingTask
from headrace.wire.fields import MISPLACED_CONSTRAINTS, FieldTable, Refused, struct_fields
from headrace.wire.framing import decode_body, raw_fields

_RUN_CODE = {name: Refused("it runs the code of a repository") for name in ("custom_generate", "trust_remote_code")}
_BODY_FIELDS = FieldTable(applied=frozenset({"inputs", "parameters", "stream"}), refused=MISPLACED_CONSTRAINTS)
T = TypeVar("T")
_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_CUT: tuple[object, ...] = (True, "longest_first")
_NOT_CUT: tuple[object, ...] = (False, "do_not_truncate")


class TextParameters(msgspec.Struct, kw_only=True):
    """Parameters that pipelines of encoders pass to the tokenizer."""

    truncation: bool | str | None = None
    max_length: int | None = None

    def pooling(self, task: PoolingTask, *, document: str | None = None, cuts: bool = False) -> PoolingParams:
        """
        Return the pooling of an input; `cuts` is the default of `truncation`, which `max_length` implies.

        Raises:
            InvalidRequest: a value is not as expected.
        """
        if self.max_length is not None and self.max_length < 1:
            raise InvalidRequest(f"`max_length` is {self.max_length}; expected 1 or more.", param="max_length")
        if self.truncation is not None and self.truncation not in (*_CUT, *_NOT_CUT):
            raise InvalidRequest(
                f"`truncation` is {self.truncation!r}; expected true, false, longest_first or do_not_truncate.",
                param="truncation",
            )
        by_default = cuts or self.max_length is not None
        is_cut = by_default if self.truncation is None else self.truncation in _CUT
        return PoolingParams(
            task=task,
            normalize=False,
            truncate="right" if is_cut else None,
            max_tokens=self.max_length if is_cut else None,
            document=document,
        )


def parameter_table(*applied: type[msgspec.Struct], refused: dict[str, Refused] | None = None) -> FieldTable:
    """Return the treatment of a pipeline's parameters; `padding` changes no result of single texts."""
    return FieldTable(
        applied=struct_fields(*applied), refused=_RUN_CODE | (refused or {}), no_effect=frozenset({"padding"})
    )


def decode_part(name: str, part: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """
    Decode the inputs or the parameters.

    Raises:
        InvalidRequest: they have another type; the error names them.
    """
    try:
        return decode_body(part, decoder)
    except InvalidRequest as error:
        raise InvalidRequest(f"`{name}` cannot be read: {error.message}", param=name) from error


def split_body(body: bytes, table: FieldTable) -> tuple[bytes, bytes, tuple[str, ...]]:
    """
    Return the JSON of the inputs and of the parameters, and the names of fields without effect.

    Without `inputs` the rest of the body is the input.

    Raises:
        MalformedBody: the body is not JSON.
        InvalidRequest: it is no object, a parameter is refused, or a constraint is beside the parameters.
    """
    fields = decode_body(body, _decoder)
    beside_inputs = _BODY_FIELDS.check(body) if "inputs" in fields else ()
    parameters = bytes(fields.pop("parameters", msgspec.Raw(b"null")))
    inputs = bytes(fields.pop("inputs")) if "inputs" in fields else msgspec.json.encode(fields)
    if parameters == b"null":
        parameters = b"{}"
    ignored = table.check(parameters, prefix="parameters.") if raw_fields(parameters) else ()
    return inputs, parameters, (*beside_inputs, *ignored)
