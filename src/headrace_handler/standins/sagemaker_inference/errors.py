"""Errors of the toolkit."""

_UNSUPPORTED = (
    "Content type {} is not supported by this framework.\n\n"
    "Please implement input_fn to to deserialize the request data or an output_fn to\n"
    "serialize the response. For more information, see the SageMaker Python SDK README."
)


class UnsupportedFormatError(Exception):
    """The toolkit's functions neither read nor write the content type."""

    def __init__(self, content_type: object) -> None:
        self._message = _UNSUPPORTED.format(content_type)
        super().__init__(self._message)


class BaseInferenceToolkitError(Exception):
    """An error that user code answers with a status of its own."""

    def __init__(self, status_code: int, message: str, phrase: str) -> None:
        self.status_code = status_code
        self.message = message
        self.phrase = phrase
        super().__init__(status_code, message, phrase)


class GenericInferenceToolkitError(BaseInferenceToolkitError):
    def __init__(self, status_code: int, message: str | None = None, phrase: str | None = None) -> None:
        message = message or "Invalid Request"
        super().__init__(status_code, message, phrase or message)
