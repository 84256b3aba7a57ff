"""The object that describes the model and the running batch to a handler."""

import os
from collections.abc import Callable
from typing import Any


class RequestProcessor:
    """The request headers of one item, and the status and headers of its response."""

    def __init__(self, request_header: dict[str, Any]) -> None:
        self._request_header = request_header
        self._status_code = 200
        self._reason_phrase: str | None = None
        self._response_header: dict[str, str] = {}

    def get_request_property(self, key: str) -> Any:
        """
        Return a request header, or None.

        TorchServe compares names exactly, but servers and proxies change their case, so another case is accepted.
        """
        if key in self._request_header:
            return self._request_header[key]
        lower = key.lower()
        return next((value for name, value in self._request_header.items() if name.lower() == lower), None)

    def get_request_properties(self) -> dict[str, Any]:
        return self._request_header

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        self._status_code = code
        self._reason_phrase = reason_phrase

    def get_response_status_code(self) -> int:
        return self._status_code

    def get_response_status_phrase(self) -> str | None:
        return self._reason_phrase

    def add_response_property(self, key: str, value: str) -> None:
        self._response_header[key] = value

    def get_response_headers(self) -> dict[str, str]:
        return self._response_header

    def get_response_header(self, key: str) -> str | None:
        return self._response_header.get(key)


class Context:
    """
    The model and the running batch.

    One object lives as long as the worker, because handlers keep state in attributes that they add (`ctx.cache`).
    """

    request_processor: Any
    """A list of `RequestProcessor`, one for each request of the batch; None while the model is loaded."""
    stopping_criteria: dict[int, Callable[[Any], bool | None]] | None

    def __init__(  # noqa: PLR0913, PLR0917 - TorchServe's signature
        self,
        model_name: str,
        model_dir: str,
        manifest: dict[str, Any],
        batch_size: int,
        gpu: int | None,
        mms_version: str,
        limit_max_image_pixels: bool = True,
        metrics: Any = None,
        model_yaml_config: dict[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.metrics = metrics
        self.model_yaml_config = {} if model_yaml_config is None else model_yaml_config
        self._system_properties = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }
        self.request_ids: dict[int, str] | None = None
        self.request_processor = None
        self.stopping_criteria = None
        self.cl_socket: Any = None
        self.header_key_sequence_id = os.environ.get("TS_REQUEST_SEQUENCE_ID", "ts_request_sequence_id")
        self.header_key_sequence_start = os.environ.get("TS_REQUEST_SEQUENCE_START", "ts_request_sequence_start")
        self.header_key_sequence_end = os.environ.get("TS_REQUEST_SEQUENCE_END", "ts_request_sequence_end")

    @property
    def system_properties(self) -> dict[str, Any]:
        return self._system_properties

    def get_request_id(self, idx: int = 0) -> str | None:
        return None if self.request_ids is None else self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> Any:
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> Any:
        return self.request_processor[idx].get_request_properties()

    def get_sequence_id(self, idx: int) -> Any:
        return self.get_request_header(idx, self.header_key_sequence_id)

    def set_response_content_type(self, idx: int, value: str) -> None:
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        content_type: str | None = self.get_response_headers(idx).get("content-type")
        return content_type

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        self.request_processor[idx].add_response_property(key, value)

    def get_response_headers(self, idx: int) -> Any:
        return self.request_processor[idx].get_response_headers()

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        if self.request_processor is not None and self.request_processor[idx] is not None:
            self.request_processor[idx].report_status(code, reason_phrase=phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        for processor in self.request_processor:
            processor.report_status(code, reason_phrase=phrase)

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        processor = self.request_processor[idx]
        return processor.get_response_status_code(), processor.get_response_status_phrase()
