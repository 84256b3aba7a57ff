"""
The pipeline `feature-extraction`: the vectors of all tokens of each input.

Source: transformers 4 and 5, `pipelines/feature_extraction.py`. An input that is too long is cut, where the pipeline
fails in the network unless `truncation` is set.
"""

from collections.abc import Sequence

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.wire.answers import Answer
from headrace.wire.dialect import ParsedRequest, RequestContext
from headrace.wire.fields import Refused
from headrace.wire.framing import to_json
from headrace.wire.pooled import parsed_pooling, pooled_of
from headrace.wire.tei.bodies import check_count
from headrace.wire.toolkit.bodies import TextParameters, decode_part, parameter_table, split_body


class Parameters(TextParameters, kw_only=True):
    """The parameters of the pipeline."""

    tokenize_kwargs: TextParameters | None = None


_inputs_decoder = msgspec.json.Decoder(str | list[str])
_parameters_decoder = msgspec.json.Decoder(Parameters)
PARAMETER_FIELDS = parameter_table(Parameters, refused={"return_tensors": Refused("JSON has no tensors")})


def parse_features(body: bytes, context: RequestContext) -> ParsedRequest:
    """
    Parse a body of the pipeline.

    Raises:
        InvalidRequest: the inputs or the parameters are not as expected.
    """
    raw_inputs, raw_parameters, ignored = split_body(body, PARAMETER_FIELDS)
    inputs = decode_part("inputs", raw_inputs, _inputs_decoder)
    given = decode_part("parameters", raw_parameters, _parameters_decoder)
    texts = inputs if isinstance(inputs, list) else [inputs]
    if not texts:
        raise InvalidRequest("`inputs` is an empty list; expected texts.", param="inputs")
    check_count(len(texts))
    pooling = (given.tokenize_kwargs or given).pooling("embed_tokens", cuts=True)

    def render(answers: Sequence[Answer]) -> bytes:
        features = [[pooled_of(answer).vectors()] for answer in answers]
        return to_json(features if isinstance(inputs, list) else features[0])

    return parsed_pooling(texts, pooling, context, render, ignored)
