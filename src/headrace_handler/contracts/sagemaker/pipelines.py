"""Pipelines of transformers as the Hugging Face images choose them: by `HF_TASK`, or by the model's architecture."""

import json
import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from headrace_handler.contract import LoadFailed

from . import removed_pipelines

_log = logging.getLogger(__name__)

_TASKS_BY_ARCHITECTURE = {
    "TapasForQuestionAnswering": "table-question-answering",
    "ForQuestionAnswering": "question-answering",
    "ForTokenClassification": "token-classification",
    "ForSequenceClassification": "text-classification",
    "ForMultipleChoice": "multiple-choice",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "ForConditionalGeneration": "text2text-generation",
    "MTModel": "text2text-generation",
    "EncoderDecoderModel": "text2text-generation",
    "GPT2LMHeadModel": "text-generation",
    "T5WithLMHeadModel": "text2text-generation",
}
_OTHER_FRAMEWORKS = ["*onnx*", "*mlmodel", "*openvino*", "*.ckpt", "*tflite", "flax*", "rust*", "tf*", "*.tar.gz"]


def configured_task() -> str | None:
    return os.environ.get("HF_TASK") or None


def fetch_model(model_dir: str) -> str:
    """
    Return the folder of the model that `HF_MODEL_ID` names, or the endpoint's own.

    Raises:
        LoadFailed: the model cannot be downloaded.
    """
    model_id = os.environ.get("HF_MODEL_ID")
    if not model_id:
        return model_dir
    if Path(model_id).is_dir():
        return model_id
    import huggingface_hub

    try:
        return huggingface_hub.snapshot_download(
            model_id,
            revision=os.environ.get("HF_MODEL_REVISION") or None,
            token=os.environ.get("HF_API_TOKEN") or os.environ.get("HF_TOKEN") or None,
            ignore_patterns=_OTHER_FRAMEWORKS,
        )
    except Exception as error:
        _log.exception("The model cannot be downloaded")
        advice = "Without the network name a folder, or set HF_HUB_OFFLINE=1 for a model in the Hub's cache."
        reason = str(error).rstrip(".")
        raise LoadFailed(500, f"HF_MODEL_ID is {model_id}, which cannot be downloaded: {reason}. {advice}") from error


def load(model_dir: str, device: int | None) -> Any:
    """
    Return the pipeline of the model.

    Raises:
        ValueError: neither `HF_TASK` nor the folder determines the task, or the task needs a package that is missing.
    """
    from transformers import pipeline
    from transformers.pipelines import SUPPORTED_TASKS

    task = configured_task() or _infer_task(Path(model_dir), sorted(SUPPORTED_TASKS))
    os.environ["HF_TASK"] = task  # as the toolkit does: user code and the CSV rules read it
    if task == "text-to-image":
        return _load_diffusers(model_dir)
    trusts_code = os.environ.get("HF_TRUST_REMOTE_CODE", "false").lower() in {"y", "yes", "t", "true", "on", "1"}
    if removed_pipelines.seq2seq_key(task) is not None and task not in SUPPORTED_TASKS:
        return removed_pipelines.load_seq2seq(task, model_dir, device, trusts_code=trusts_code)
    if task == removed_pipelines.QUESTION_ANSWERING and task not in SUPPORTED_TASKS:
        return removed_pipelines.load_question_answering(model_dir, device, trusts_code=trusts_code)
    _check_supported(task, SUPPORTED_TASKS)
    return pipeline(
        task=task,  # type: ignore[call-overload]
        model=model_dir,
        device=-1 if device is None else device,
        trust_remote_code=trusts_code,
    )


def _check_supported(task: str, supported: Collection[str]) -> None:
    """
    Refuse a task that transformers does not have; its own error is a KeyError.

    Raises:
        ValueError: the task is unknown.
    """
    aliases = {"sentiment-analysis", "ner", "vqa", "text-to-speech"}
    if task not in supported and task not in aliases and not task.startswith("translation"):
        from transformers import __version__

        raise ValueError(
            f"HF_TASK is {task}, which transformers {__version__} has no pipeline for; expected one of "
            f"{', '.join(sorted(supported))}. Or name another version of transformers in requirements.txt."
        )


def _infer_task(model_dir: Path, supported: list[str]) -> str:
    config = model_dir / "config.json"
    if config.is_file():
        return infer_task_of_architecture((json.loads(config.read_text()).get("architectures") or ["None"])[0])
    if (model_dir / "model_index.json").is_file():
        return "text-to-image"
    raise ValueError(f"You need to define one of the following {supported} or text-to-image as env 'HF_TASK'.")


def infer_task_of_architecture(architecture: str) -> str:
    """
    Return the task that the end of an architecture's name implies.

    Raises:
        ValueError: it implies none.
    """
    task = None
    for ending, named in _TASKS_BY_ARCHITECTURE.items():
        # The last one counts, as in the toolkit; Tapas is asked with tables all the same.
        if architecture.endswith(ending) and task != "table-question-answering":
            task = named
    if task is None:
        raise ValueError(
            f"Task couldn't be inferenced from {architecture}."
            f"Inference Toolkit can only inference tasks from architectures ending with {list(_TASKS_BY_ARCHITECTURE)}."
            "Use env `HF_TASK` to define your task."
        )
    return task


def _load_diffusers(model_dir: str) -> Any:
    try:
        from diffusers import AutoPipelineForText2Image
    except ImportError as error:
        raise ValueError("The task text-to-image needs the package diffusers. Add it to requirements.txt.") from error
    images = AutoPipelineForText2Image.from_pretrained(model_dir)

    def generate(prompt: Any, **parameters: Any) -> Any:
        num_images = parameters.pop("num_images_per_prompt", 1)
        if num_images != 1:
            _log.warning("num_images_per_prompt is %s; one image is generated", num_images)
        return images(prompt, num_images_per_prompt=1, **parameters).images[0]

    return generate
