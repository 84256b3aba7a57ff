"""DJL's handler for models of Hugging Face, over transformers where it is installed."""

import importlib
from collections.abc import Mapping
from typing import Any

from headrace_handler.client_data import check_parameters

from .encode_decode import decode, encode
from .inputs import Input
from .outputs import Output
from .streaming_utils import StreamingUtils

_TASKS = {
    "TapasForQuestionAnswering": "table-question-answering",
    "ForQuestionAnswering": "question-answering",
    "ForTokenClassification": "token-classification",
    "ForSequenceClassification": "text-classification",
    "ForMultipleChoice": "multiple-choice",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForConditionalGeneration": "text2text-generation",
}
"""The end of an architecture's name → its pipeline."""

Parsed = tuple[list[Any], list[int], list[dict[str, Any]], dict[int, str], list[Input]]
"""Prompts, numbers of prompts, parameters, errors and requests; see `HuggingFaceService.parse_input`."""


class HuggingFaceService:
    """A pipeline of transformers that answers DJL's requests."""

    def __init__(self) -> None:
        self.initialized = False
        self.hf_pipeline: Any = None
        self.model: Any = None
        self.tokenizer: Any = None
        self.device: Any = None
        self.is_streaming = False

    def initialize(self, properties: Mapping[str, Any]) -> None:
        """
        Load the model that `model_id` names, else the one in `model_dir`.

        Raises `ImportError`: transformers is not installed.
        """
        try:
            transformers: Any = importlib.import_module("transformers")
        except ImportError as error:
            raise ImportError(
                "djl_python.huggingface needs transformers and torch. Add both to requirements.txt, or serve the model"
                " without a handler."
            ) from error
        name = str(properties.get("model_id") or properties["model_dir"])
        options = {
            "revision": properties.get("revision"),
            "trust_remote_code": str(properties.get("trust_remote_code", "false")).lower() == "true",
        }
        config = transformers.AutoConfig.from_pretrained(name, **options)
        task = properties.get("task") or infer_task(getattr(config, "architectures", None) or ())
        device_id = int(properties.get("device_id", "-1"))
        self.hf_pipeline = transformers.pipeline(
            task=task, model=name, device="cpu" if device_id < 0 else device_id, **options
        )
        self.model, self.tokenizer = self.hf_pipeline.model, self.hf_pipeline.tokenizer
        self.device = self.hf_pipeline.device
        if self.tokenizer is not None and task == "text-generation":
            self.tokenizer.padding_side = "left"
            self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        self.is_streaming = str(properties.get("enable_streaming", "false")).lower() not in {"false", ""}
        self.initialized = True

    def parse_input(self, inputs: Input) -> Parsed:
        """
        Return the prompts of a call, and what belongs to them; models replace this method (djl-serving up to 0.26).

        Returns:
            All prompts, the number of prompts and the parameters of each request without an error, the errors by the
            index of their request, and the requests.
        """
        prompts: list[Any] = []
        sizes: list[int] = []
        parameters: list[dict[str, Any]] = []
        batch = inputs.get_batches()
        for item in batch:
            given, options = _parse(item)
            given = given if isinstance(given, list) else [given]
            prompts += given
            sizes.append(len(given))
            parameters.append(options)
        return prompts, sizes, parameters, {}, batch

    def inference(self, inputs: Input) -> Output:
        prompts, sizes, parameters, errors, batch = self.parse_input(inputs)
        if self.is_streaming and not errors:
            return self._stream(prompts, parameters)
        outputs = Output()
        keys = inputs.get_content().get_keys() if inputs.is_batch() else ["data"]
        waiting, found = iter(prompts), zip(sizes, parameters, strict=True)
        for index, (item, key) in enumerate(zip(batch, keys, strict=True)):
            if index in errors:
                answer: Any = errors[index]
            else:
                size, options = next(found)
                answer = self._predict([next(waiting) for _ in range(size)], options)
            encode(outputs, answer, _accept(item), key=key)
        return outputs

    def _predict(self, prompts: list[Any], parameters: dict[str, Any]) -> Any:
        prediction = self.hf_pipeline(prompts, **parameters)
        # A pipeline of texts returns a list for each prompt, with one result unless several were asked for.
        return [result[0] if isinstance(result, list) and len(result) == 1 else result for result in prediction]

    def _stream(self, prompts: list[Any], parameters: list[dict[str, Any]]) -> Output:
        if len(parameters) > 1:
            raise NotImplementedError("Dynamic batch not supported for generic streaming")
        texts = StreamingUtils.use_hf_default_streamer(
            self.model, self.tokenizer, prompts, self.device, **parameters[0]
        )
        return Output().add_property("content-type", "application/jsonlines").add_stream_content(texts)


def infer_task(architectures: Any) -> str:
    """
    Return the pipeline's task by the architecture's name.

    Raises `ValueError`: no architecture is known; `option.task` has to name the task.
    """
    for name in architectures:
        for end, task in _TASKS.items():
            if name.endswith(end):
                return task
    raise ValueError(f"The model's architectures are {list(architectures)}; expected a known one. Set option.task.")


def get_rolling_batch_class_from_str(rolling_batch_type: str, *_: Any) -> Any:
    """Raise an error: there are no classes of rolling batches outside the engine. Raises `ValueError`: always."""
    raise ValueError(
        f"Invalid rolling batch type: {rolling_batch_type}. Batches of generated text are made by the server's engine;"
        " serve the model without a handler, or write one for option.rolling_batch."
    )


_service = HuggingFaceService()


def handle(inputs: Input) -> Output | None:
    """Load the model with the first call, then answer requests."""
    if not _service.initialized:
        _service.initialize(inputs.get_properties())
    return None if inputs.is_empty() else _service.inference(inputs)


def register_adapter(inputs: Input) -> Output:
    raise NotImplementedError("LoRA adapter API is only supported for rolling batch.")


update_adapter = unregister_adapter = register_adapter


def _parse(item: Input) -> tuple[Any, dict[str, Any]]:
    payload = decode(item, item.get_property("Content-Type"))
    if not isinstance(payload, dict):
        return payload, {}
    parameters = payload.pop("parameters", None) or {}
    check_parameters(parameters)
    return payload.pop("inputs", payload), parameters


def _accept(item: Input) -> str:
    accept = item.get_property("Accept")
    if not accept:
        content_type = item.get_property("Content-Type") or ""
        return content_type if content_type.startswith("tensor/") else "application/json"
    return "application/json" if "*/*" in accept else str(accept)
