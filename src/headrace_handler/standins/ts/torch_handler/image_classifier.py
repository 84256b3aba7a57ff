"""The default handler `image_classifier`."""

import functools
from typing import Any

from ..handler_utils.timer import timed
from ..utils.util import map_class_to_label
from .vision_handler import VisionHandler, imagenet_processing


class ImageClassifier(VisionHandler):
    """Returns the `topk` most probable classes of each image."""

    topk = 5

    @functools.cached_property
    def image_processing(self) -> Any:
        return imagenet_processing()

    def set_max_result_classes(self, topk: int) -> None:
        self.topk = topk

    def get_max_result_classes(self) -> int:
        return self.topk

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        import torch

        probabilities, classes = torch.topk(torch.softmax(data, dim=1), self.topk, dim=1)
        return map_class_to_label(probabilities.tolist(), self.mapping, classes.tolist())
