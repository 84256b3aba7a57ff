"""The default handler `object_detector`."""

import functools
from typing import Any

from ..utils.util import map_class_to_label
from .vision_handler import VisionHandler


class ObjectDetector(VisionHandler):
    """Returns the objects of each image with their boxes and scores, of at least `threshold`."""

    threshold = 0.5

    @functools.cached_property
    def image_processing(self) -> Any:
        from torchvision import transforms

        return transforms.Compose([transforms.ToTensor()])

    def postprocess(self, data: Any) -> list[Any]:
        return [self._objects(image) for image in data]

    def _objects(self, image: Any) -> list[dict[str, Any]]:
        likely = image["scores"] >= self.threshold
        boxes, labels, scores = (image[key][likely].tolist() for key in ("boxes", "labels", "scores"))
        named = [
            map_class_to_label([[box]], self.mapping, [[label]])[0] for box, label in zip(boxes, labels, strict=True)
        ]
        return [found | {"score": score} for found, score in zip(named, scores, strict=True)]
