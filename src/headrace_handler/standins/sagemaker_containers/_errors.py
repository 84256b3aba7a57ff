_UNSUPPORTED = (
    "Content type {} is not supported by this framework.\n\n"
    "Please implement input_fn to to deserialize the request data or an output_fn to\n"
    "serialize the response. For more information, see the SageMaker Python SDK README."
)


class ClientError(Exception):
    """An error of user code or of its data."""


class ImportModuleError(ClientError):
    """User code cannot be imported."""


class UnsupportedFormatError(Exception):
    """The image's functions neither read nor write the content type."""

    def __init__(self, content_type: object) -> None:
        self.message = _UNSUPPORTED.format(content_type)
        super().__init__(self.message)
