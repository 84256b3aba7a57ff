"""A TorchServe handler: words in, loud words out, one by one. Stages of micro-batches run at the same time."""

from ts.handler_utils.micro_batching import MicroBatching
from ts.handler_utils.utils import send_intermediate_predict_response
from ts.torch_handler.base_handler import BaseHandler


class ShoutHandler(BaseHandler):
    def __init__(self):
        super().__init__()
        self.handle = MicroBatching(self)

    def initialize(self, ctx):
        self.ending = ctx.model_yaml_config["handler"]["ending"]
        settings = ctx.model_yaml_config["micro_batching"]
        self.handle.micro_batch_size = settings["micro_batch_size"]
        self.handle.parallelism = settings["parallelism"]

    def preprocess(self, requests):
        bodies = [request.get("data") or request.get("body") for request in requests]
        return [body.decode() if isinstance(body, bytearray) else body for body in bodies]

    def inference(self, texts):
        first = self.handle.get_micro_batch_idx() * self.handle.micro_batch_size
        for index, text in enumerate(texts):
            ids = {0: self.context.request_ids[first + index]}
            for word in text.split():
                part = [word.upper() + " "]
                send_intermediate_predict_response(part, ids, "Intermediate Prediction success", 200, self.context)
        return [self.ending] * len(texts)

    def postprocess(self, endings):
        return endings
