"""Base classes of handlers, and the default handlers that a model names instead of a file."""

from headrace_handler.submodules import add_submodules

from . import text_handler, vision_handler

_IMAGES = {
    "image_classifier": "ImageClassifier",
    "image_segmenter": "ImageSegmenter",
    "object_detector": "ObjectDetector",
}
add_submodules(__name__, _IMAGES, source=vision_handler.__name__)
add_submodules(__name__, {"text_classifier": "TextClassifier"}, source=text_handler.__name__)
