"""A classifier of sentiment by word lists, with one answer or a line for each sentence."""

import json
import re
from pathlib import Path

from djl_python import Input, Output


class Sentiment:
    """Counts good and bad words."""

    def __init__(self):
        self.initialized = False
        self.words = {}
        self.threshold = 0

    def initialize(self, properties: dict):
        """Load the words; the options of serving.properties are in the first call only."""
        self.words = json.loads(Path("words.json").read_text())  # the model's folder is the current one
        self.threshold = int(properties.get("threshold", 0))
        self.initialized = True

    def classify(self, text: str) -> dict:
        score = sum(self.words.get(word, 0) for word in re.findall(r"\w+", text.lower()))
        label = "positive" if score > self.threshold else "negative" if score < -self.threshold else "neutral"
        return {"label": label, "score": score}


_service = Sentiment()


def handle(inputs: Input) -> Output | None:
    if not _service.initialized:
        _service.initialize(inputs.get_properties())
    if inputs.is_empty():
        return None  # the call that loads the model

    outputs = Output()
    for index, item in enumerate(inputs.get_batches()):
        payload = item.get_as_json()
        if payload.get("stream"):
            sentences = re.split(r"(?<=[.!?])\s+", payload["inputs"])
            return outputs.add_property("Content-Type", "application/jsonlines").add_stream_content(
                (json.dumps(_service.classify(sentence)) + "\n" for sentence in sentences), None
            )
        outputs.add_as_json(
            _service.classify(payload["inputs"]), key="data", batch_index=index if inputs.is_batch() else None
        )
    return outputs.add_property("Content-Type", "application/json")
