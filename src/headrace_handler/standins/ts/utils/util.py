"""Labels of classes, classes of a module, and the exception with a status."""

import inspect
import itertools
import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

logger = logging.getLogger(__name__)


class PredictionException(Exception):
    """
    A failure whose status and text the client sees.

    Attributes:
        message: the text of the response.
        error_code: its status.
    """

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """List the classes that a module defines itself, in order of their names."""
    defined = [value for _, value in inspect.getmembers(module, inspect.isclass) if value.__module__ == module.__name__]
    return [found for found in defined if parent_class is None or issubclass(found, parent_class)]


def load_label_mapping(mapping_file_path: str) -> dict[str, str] | None:
    """
    Read `index_to_name.json`: the name of each class.

    The value of a class may be a list whose last element is the name, and a file may hold `object_type_names`,
    a list of all names.
    """
    path = Path(mapping_file_path)
    if not path.is_file():
        logger.warning("%r is missing. Inference output will not include class name.", mapping_file_path)
        return None
    mapping = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(mapping, dict):
        raise TypeError('index->name JSON mapping should be in "class": "label" format.')
    names = mapping.get("object_type_names")
    if isinstance(names, list):
        return {str(index): name for index, name in enumerate(names)}
    labels = {key: value[-1] if isinstance(value, list) else value for key, value in mapping.items()}
    if not all(isinstance(label, str) for label in labels.values()):
        raise TypeError("labels in index->name mapping must be either str or List[str]")
    return labels


def map_class_to_label(
    probs: list[list[Any]], mapping: dict[str, str] | None = None, lbl_classes: Iterable[Sequence[Any]] | None = None
) -> list[dict[str, Any]]:
    """
    Name the classes of each row of probabilities.

    Args:
        probs: rows of values, such as probabilities.
        mapping: names by class; None: classes are named by their numbers.
        lbl_classes: the classes of each row; None: 0, 1, 2 and so on.
    """
    if not isinstance(probs, list):
        raise TypeError("Convert classes to list before doing mapping")
    if mapping is not None and not isinstance(mapping, dict):
        raise TypeError("Mapping must be a dict")
    classes = itertools.repeat(range(len(probs[0])) if probs else range(0)) if lbl_classes is None else lbl_classes
    return [
        {(str(number) if mapping is None else mapping[str(number)]): value for number, value in zip(row, values)}  # noqa: B905
        for row, values in zip(classes, probs)  # noqa: B905 - `classes` may be endless
    ]


def get_yaml_config(yaml_file_path: str) -> Any:
    import yaml

    return yaml.safe_load(Path(yaml_file_path).read_text(encoding="utf-8"))
