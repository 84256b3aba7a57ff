"""
The toolkit's pipelines of encoders, `text-classification` and `feature-extraction`, and the body of all pipelines.

Source: transformers 4 and 5, `pipelines/text_classification.py`: the best label of each input, in a list if the input
is one text; with `top_k` that many of each, the best first; with `return_all_scores` (version 4) all in their order.
`pipelines/feature_extraction.py`: the vectors of all tokens of each input. An input that is too long is cut, where the
pipeline fails in the network unless `truncation` is set.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.generation import PoolingInfo, PoolingParams
from headrace.core.model_kinds import PoolingTask
from headrace.serving.wire.answers import Answer
from headrace.serving.wire.dialect import ParsedRequest, RequestContext
from headrace.serving.wire.fields import MISPLACED_CONSTRAINTS, FieldTable, field_table
from headrace.serving.wire.framing import decode_body, raw_fields, to_json
from headrace.serving.wire.pooled import parsed_pooling, pooled_of, sigmoid, softmax, vector_of
from headrace.serving.wire.tei.dialect import check_count

_BODY_FIELDS = FieldTable(applied=frozenset({"inputs", "parameters", "stream"}), refused=MISPLACED_CONSTRAINTS)
T = TypeVar("T")
_body_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
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


def decode_part(name: str, part: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode the inputs or the parameters. Raises `InvalidRequest`: they have another type; the error names them."""
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
    fields = decode_body(body, _body_decoder)
    beside_inputs = _BODY_FIELDS.check(body) if "inputs" in fields else ()
    parameters = bytes(fields.pop("parameters", msgspec.Raw(b"null")))
    inputs = bytes(fields.pop("inputs")) if "inputs" in fields else msgspec.json.encode(fields)
    if parameters == b"null":
        parameters = b"{}"
    ignored = table.check(parameters, prefix="parameters.") if raw_fields(parameters) else ()
    return inputs, parameters, (*beside_inputs, *ignored)


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


class ClassificationParameters(TextParameters, kw_only=True):
    """The parameters of the pipeline."""

    top_k: int | msgspec.UnsetType | None = msgspec.UNSET
    function_to_apply: str | None = None
    return_all_scores: bool | None = None


Item = str | TextPair | list[list[str]]
"""The last one is an old form of a pair: a list of one list of two texts."""
_texts_decoder = msgspec.json.Decoder(str | TextPair | list[str | dict[str, str] | list[str | list[str]]])
_pair_decoder = msgspec.json.Decoder(TextPair)
_parameters_decoder = msgspec.json.Decoder(ClassificationParameters)
CLASSIFICATION_FIELDS = field_table("pipeline", ClassificationParameters)


def parse_classification(body: bytes, context: RequestContext) -> ParsedRequest:
    """Parse a body of the pipeline. Raises `InvalidRequest`: the inputs or the parameters are not as expected."""
    raw_inputs, raw_parameters, ignored = split_body(body, CLASSIFICATION_FIELDS)
    inputs = decode_part("inputs", raw_inputs, _texts_decoder)
    parameters = decode_part("parameters", raw_parameters, _parameters_decoder)
    items = [_text_pair(item) for item in (inputs if isinstance(inputs, list) else [inputs])]
    if not items:
        raise InvalidRequest("`inputs` is an empty list; expected texts.", param="inputs")
    check_count(len(items))
    info = context.model.pooling
    labels, activate = () if info is None else info.labels, _activation(parameters.function_to_apply, info)

    def render(answers: Sequence[Answer]) -> bytes:
        results = []
        for outputs in map(vector_of, answers):
            scores = zip(labels, activate(outputs), strict=True)
            found: list[Label] = [{"label": label, "score": score} for label, score in scores]
            results.append(_labelled(outputs, found, parameters))
        is_list = isinstance(inputs, str) and parameters.top_k is msgspec.UNSET
        return to_json(results if is_list or isinstance(inputs, list) else results[0])

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


def _activation(name: str | None, info: PoolingInfo | None) -> Callable[[Scores], list[float]]:
    problem, num_labels = ("", 0) if info is None else (info.problem_type, len(info.labels))
    is_sigmoid = problem == "multi_label_classification" or num_labels == 1
    default = "none" if problem == "regression" else "sigmoid" if is_sigmoid else "softmax"
    name = (name or default).lower()
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    text = f"`function_to_apply` is {name[:40]!r}; expected one of {', '.join(_FUNCTIONS)}."
    raise InvalidRequest(text, param="function_to_apply")


def _labelled(outputs: Scores, found: list[Label], parameters: ClassificationParameters) -> Label | list[Label]:
    """Return the best labels of an input; without `top_k` the best one alone, or all in the order of the model."""
    order = sorted(range(len(found)), key=lambda index: -outputs[index])
    if isinstance(parameters.top_k, msgspec.UnsetType):
        return found if parameters.return_all_scores else found[order[0]]
    return [found[index] for index in order][: parameters.top_k]


class FeatureParameters(TextParameters, kw_only=True):
    """The parameters of the pipeline."""

    tokenize_kwargs: TextParameters | None = None


_features_decoder = msgspec.json.Decoder(str | list[str])
_feature_parameters_decoder = msgspec.json.Decoder(FeatureParameters)
FEATURE_FIELDS = field_table("pipeline-features", FeatureParameters)


def parse_features(body: bytes, context: RequestContext) -> ParsedRequest:
    """Parse a body of the pipeline. Raises `InvalidRequest`: the inputs or the parameters are not as expected."""
    raw_inputs, raw_parameters, ignored = split_body(body, FEATURE_FIELDS)
    inputs = decode_part("inputs", raw_inputs, _features_decoder)
    given = decode_part("parameters", raw_parameters, _feature_parameters_decoder)
    texts = inputs if isinstance(inputs, list) else [inputs]
    if not texts:
        raise InvalidRequest("`inputs` is an empty list; expected texts.", param="inputs")
    check_count(len(texts))
    pooling = (given.tokenize_kwargs or given).pooling("embed_tokens", cuts=True)

    def render(answers: Sequence[Answer]) -> bytes:
        features = [[pooled_of(answer).vectors()] for answer in answers]
        return to_json(features if isinstance(inputs, list) else features[0])

    return parsed_pooling(texts, pooling, context, render, ignored)
