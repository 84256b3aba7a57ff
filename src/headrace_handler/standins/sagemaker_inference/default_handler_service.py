"""The class that a model server loads."""

import sys
from pathlib import PurePath
from typing import Any

from .transformer import Transformer


class DefaultHandlerService:
    def __init__(self, transformer: Any = None) -> None:
        self._service = transformer or Transformer()

    def handle(self, data: list[Any], context: Any) -> Any:
        return self._service.transform(data, context)

    def initialize(self, context: Any) -> None:
        """Make the code of the model importable, and load the model."""
        model_dir = context.system_properties.get("model_dir")
        code_dir = str(PurePath(model_dir, "code"))
        if code_dir not in sys.path:
            sys.path.insert(0, code_dir)
        self._service.validate_and_initialize(model_dir=model_dir, context=context)
