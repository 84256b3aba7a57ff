"""The parser of a format."""

from headrace.core.answer_format.channels import ChannelParser
from headrace.core.answer_format.formats import AnswerFormat
from headrace.core.answer_format.parts import AnswerParser
from headrace.core.answer_format.tags import TagParser


def make_parser(known: AnswerFormat, opening: str = "") -> AnswerParser:
    """Return a parser of an answer that continues `opening`, see `AnswerFormat.opening`."""
    parser: AnswerParser = ChannelParser() if known.has_channels else TagParser(known)
    parser.feed(opening)
    return parser
