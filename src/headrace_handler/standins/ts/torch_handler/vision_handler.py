"""The handlers of images, with their base class."""

import base64
import functools
from typing import Any

from headrace_handler.client_data import open_image

from ..context import Context
from ..handler_utils import timed
from ..utils.util import map_class_to_label
from .base_handler import BaseHandler


class VisionHandler(BaseHandler):
    """A handler that decodes images, in base64 too, and passes nested lists on as tensors."""

    image_processing: Any
    """Converts a PIL image to a tensor; defined by subclasses."""

    @functools.cached_property
    def ig(self) -> Any:
        """Captum's integrated gradients over the model, created for the first explanation."""
        from captum.attr import IntegratedGradients

        return IntegratedGradients(self.model)

    def initialize(self, context: Context) -> None:
        super().initialize(context)
        if not context.system_properties.get("limit_max_image_pixels"):
            from PIL import Image

            Image.MAX_IMAGE_PIXELS = None

    @timed
    def preprocess(self, data: Any) -> Any:
        """Convert the field `data` or the body of each request to a tensor, and stack them."""
        import torch

        return torch.stack([self._to_tensor(row.get("data") or row.get("body")) for row in data]).to(self.device)

    def get_insights(self, data_preprocess: Any, inputs: Any, target: Any = 0) -> Any:
        del inputs
        return self.ig.attribute(data_preprocess, target=target, n_steps=15).tolist()

    def _to_tensor(self, image: Any) -> Any:
        if isinstance(image, str):
            image = base64.b64decode(image)
        if not isinstance(image, bytes | bytearray):
            import torch

            return torch.FloatTensor(image)
        return self.image_processing(open_image(image))


def imagenet_processing() -> Any:
    """Return the steps that ImageNet models expect: the middle 224 x 224 pixels, normalized."""
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )


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


class ImageSegmenter(VisionHandler):
    """Returns the most probable class of each pixel and its probability: rows of `[class, probability]`."""

    @functools.cached_property
    def image_processing(self) -> Any:
        return imagenet_processing()

    def postprocess(self, data: Any) -> list[Any]:
        import torch

        best = torch.softmax(data["out"], dim=1).max(dim=1)
        pixels: list[Any] = torch.stack([best.indices.type(best.values.dtype), best.values], dim=3).tolist()
        return pixels


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
