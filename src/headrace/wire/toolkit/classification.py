"""
The pipeline `text-classification`.

Source: transformers 4 and 5, `pipelines/text_classification.py`: the best label of each input, in a list if the input
is one text; with `top_k` that many of each, the best first; with `return_all_scores` (version 4) all in their order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.generation import PoolingInfo
from headrace.wire.answers import Answer
from headrace.wire.dialect import ParsedRequest, RequestContext
from headrace.wire.framing import to_json
from headrace.wire.pooled import parsed_pooling, sigmoid, softmax, vector_of
from headrace.wire.tei.bodies import check_count
from headrace.wire.toolkit.bodies import TextParameters, decode_part, parameter_table, split_body

Scores = Sequence[float]
Label = dict[str, object]

_NO_PAIRS = (
    "The pipeline received invalid inputs, if you are trying to send text pairs, you can try to send a"
    ' dictionary `{"text": "My text", "text_pair": "My pair"}` in order to send a text pair.'
)
_FUNCTIONS: dict[str, Callable[[Scores], list[float]]] = {"sigmoid": sigmoid, "softmax": softmax, "none": list}


class TextPair(msgspec.Struct, forbid_unknown_fields=True):
    """A text, or two that are classified together."""

    text: str
    text_pair: str | None = None


class Parameters(TextParameters, kw_only=True):
    """The parameters of the pipeline."""

    top_k: int | msgspec.UnsetType | None = msgspec.UNSET
    function_to_apply: str | None = None
    return_all_scores: bool | None = None


Item = str | TextPair | list[list[str]]
"""The last one is an old form of a pair: a list of one list of two texts."""
_inputs_decoder = msgspec.json.Decoder(str | TextPair | list[str | dict[str, str] | list[str | list[str]]])
_pair_decoder = msgspec.json.Decoder(TextPair)
_parameters_decoder = msgspec.json.Decoder(Parameters)
PARAMETER_FIELDS = parameter_table(Parameters)


def parse_classification(body: bytes, context: RequestContext) -> ParsedRequest:
    """
    Parse a body of the pipeline.

    Raises:
        InvalidRequest: the inputs or the parameters are not as expected.
    """
    raw_inputs, raw_parameters, ignored = split_body(body, PARAMETER_FIELDS)
    inputs = decode_part("inputs", raw_inputs, _inputs_decoder)
    parameters = decode_part("parameters", raw_parameters, _parameters_decoder)
    items = [_text_pair(item) for item in (inputs if isinstance(inputs, list) else [inputs])]
    if not items:
        raise InvalidRequest("`inputs` is an empty list; expected texts.", param="inputs")
    check_count(len(items))
    form = _Form.of(parameters, context.model.pooling)

    def render(answers: Sequence[Answer]) -> bytes:
        results = [form.result(vector_of(answer)) for answer in answers]
        if isinstance(inputs, list):
            return to_json(results)
        return to_json(results if isinstance(inputs, str) and form.is_legacy else results[0])

    pooling = [parameters.pooling("score", document=pair.text_pair) for pair in items]
    return parsed_pooling([pair.text for pair in items], pooling, context, render, ignored)


def _text_pair(item: object) -> TextPair:
    match item:
        case str():
            return TextPair(item)
        case TextPair():
            return item
        case dict():
            return decode_part("inputs", msgspec.json.encode(item), _pair_decoder)
        case [[str(text), str(pair)]]:
            return TextPair(text, pair)
    raise InvalidRequest(_NO_PAIRS, param="inputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """The form of the result of one input."""

    labels: tuple[str, ...]
    activate: Callable[[Scores], list[float]]
    top_k: int | None
    """The number of labels, the best first; None: all of them."""
    is_legacy: bool
    """True without `top_k`: the best label alone, or all in the order of the model."""

    @classmethod
    def of(cls, parameters: Parameters, info: PoolingInfo | None) -> "_Form":
        labels = () if info is None else info.labels
        name = (parameters.function_to_apply or _default_function(info)).lower()
        if name not in _FUNCTIONS:
            raise InvalidRequest(
                f"`function_to_apply` is {name[:40]!r}; expected one of {', '.join(_FUNCTIONS)}.",
                param="function_to_apply",
            )
        is_legacy = parameters.top_k is msgspec.UNSET
        top_k = (
            (None if parameters.return_all_scores else 1)
            if isinstance(parameters.top_k, msgspec.UnsetType)
            else (parameters.top_k)
        )
        return cls(labels=labels, activate=_FUNCTIONS[name], top_k=top_k, is_legacy=is_legacy)

    def result(self, outputs: Scores) -> Label | list[Label]:
        found: list[Label] = [
            {"label": label, "score": score} for label, score in zip(self.labels, self.activate(outputs), strict=True)
        ]
        order = sorted(range(len(found)), key=lambda index: -outputs[index])
        if self.is_legacy:
            return found if self.top_k is None else found[order[0]]
        return [found[index] for index in order][: self.top_k]


def _default_function(info: PoolingInfo | None) -> str:
    problem, num_labels = ("", 0) if info is None else (info.problem_type, len(info.labels))
    if problem == "regression":
        return "none"
    return "sigmoid" if problem == "multi_label_classification" or num_labels == 1 else "softmax"
