"""The dialect `hf-toolkit`, whose pipeline follows from the model that is served."""

from dataclasses import dataclass
from typing import Literal

from headrace.core.errors import HeadraceError
from headrace.wire.dialect import ErrorReply, ParsedRequest, RequestContext
from headrace.wire.framing import refusing_deep_nesting
from headrace.wire.toolkit.classification import parse_classification
from headrace.wire.toolkit.errors import render_error
from headrace.wire.toolkit.features import parse_features
from headrace.wire.toolkit.generation import parse_generation

PipelineTask = Literal["text-generation", "text-classification", "feature-extraction"]
"""The tasks of Headrace's engine; the others run in transformers (`headrace_handler.contracts.sagemaker`)."""

_PARSERS = {
    "text-generation": parse_generation,
    "text-classification": parse_classification,
    "feature-extraction": parse_features,
}


@dataclass(frozen=True, slots=True)
class Toolkit:
    """A pipeline of the Hugging Face Inference Toolkit for SageMaker."""

    task: PipelineTask = "text-generation"

    @property
    def name(self) -> str:
        """The dialect's name in the settings and the log."""
        return f"hf-toolkit-{self.task}"

    @refusing_deep_nesting()
    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """
        Parse a body.

        Raises:
            InvalidRequest: as the pipeline's exception.
        """
        return _PARSERS[self.task](body, context)

    def render_error(self, error: HeadraceError) -> ErrorReply:
        """Render `{"code": ..., "type": ..., "message": ...}`."""
        return render_error(error)
