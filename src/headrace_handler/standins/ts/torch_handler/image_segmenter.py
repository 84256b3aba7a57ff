"""The default handler `image_segmenter`."""

import functools
from typing import Any

from .vision_handler import VisionHandler, imagenet_processing


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
