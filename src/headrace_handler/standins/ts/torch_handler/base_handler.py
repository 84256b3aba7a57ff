"""The base class of handlers: loads a PyTorch model and takes requests through three stages."""

import abc
import importlib
import logging
import os
import time
from pathlib import Path
from typing import Any

from ..context import Context
from ..handler_utils import timed
from ..utils.util import list_classes_from_module, load_label_mapping

logger = logging.getLogger(__name__)


class BaseHandler(abc.ABC):  # noqa: B024 - users derive from it and from ABC
    """A handler that loads the model of the manifest; subclasses replace the stages that differ."""

    def __init__(self) -> None:
        self.model: Any = None
        self.mapping: dict[str, str] | None = None
        self.device: Any = None
        self.initialized = False
        self.context: Any = None
        self.model_pt_path: str | None = None
        self.manifest: Any = None
        self.map_location: str | None = None
        self.explain = False
        self.target = 0
        self.profiler_args: dict[str, Any] = {}
        self.model_yaml_config: dict[str, Any] = {}

    def initialize(self, context: Context) -> None:
        """
        Load the model: TorchScript, a state of the class in `modelFile`, ONNX, or a library that PyTorch exported.

        Raises `RuntimeError`: the manifest names no file that can be loaded.
        """
        self.model_yaml_config = context.model_yaml_config or {}
        self.manifest = context.manifest
        self.map_location, self.device = _choose_device(context.system_properties.get("gpu_id"))
        model_dir, model = context.system_properties["model_dir"], self.manifest["model"]
        if "serializedFile" in model:
            self.model_pt_path = str(Path(model_dir, model["serializedFile"]))
        if model.get("modelFile"):
            self.model = self._load_pickled_model(model_dir, model["modelFile"], self.model_pt_path)
            self.model.to(self.device)
            self.model.eval()
        else:
            self.model = self._load_serialized(self.model_pt_path or "")
        self._compile()
        self.mapping = load_label_mapping(str(Path(model_dir, "index_to_name.json")))
        self.initialized = True

    @timed
    def preprocess(self, data: Any) -> Any:
        """Convert the requests to a tensor on the device."""
        import torch

        return torch.as_tensor(data, device=self.device)

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        with torch.inference_mode():
            return self.model(data.to(self.device), *args, **kwargs)

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        """Convert the model's output to a list with one result for each request."""
        results: list[Any] = data.tolist()
        return results

    def handle(self, data: Any, context: Context) -> Any:
        """Take requests through the stages and report the metric `HandlerTime`."""
        start = time.perf_counter()
        self.context = context
        output: Any
        if os.environ.get("ENABLE_TORCH_PROFILER"):
            output, _ = self._infer_with_profiler(data)
        elif self._is_describe():
            output = [self.describe_handle()]
        else:
            output = self._run_stages(data)
        context.metrics.add_time("HandlerTime", round((time.perf_counter() - start) * 1000, 2), None, "ms")
        return output

    def explain_handle(self, data_preprocess: Any, raw_data: Any) -> Any:
        """Explain the prediction for the first request, which may name its `target`."""
        row = raw_data[0]
        inputs, target = None, 0
        if isinstance(row, dict):
            inputs = row.get("data") or row.get("body")
            target = row.get("target") or 0
        return self.get_insights(data_preprocess, inputs, target)

    def get_insights(self, data_preprocess: Any, inputs: Any, target: Any) -> Any:
        """Explain a prediction; subclasses that can do so replace this method."""
        del data_preprocess, inputs, target
        raise NotImplementedError(f"{type(self).__name__} has no get_insights, which explanations need.")

    def describe_handle(self) -> Any:
        """Return the model's own metadata for the management API."""
        return None

    def get_device(self) -> Any:
        return self.device

    def _is_explain(self) -> bool:
        self.explain = self._has_flag("explain")
        return self.explain

    def _is_describe(self) -> bool:
        return self._has_flag("describe")

    def _has_flag(self, header: str) -> bool:
        return bool(self.context) and self.context.get_request_header(0, header) == "True"

    def _run_stages(self, data: Any) -> Any:
        prepared = self.preprocess(data)
        if self._is_explain():
            return self.explain_handle(prepared, data)
        return self.postprocess(self.inference(prepared))

    def _infer_with_profiler(self, data: Any) -> tuple[Any, Any]:
        """Run the stages under PyTorch's profiler, with the arguments in `profiler_args`."""
        import torch.profiler

        if "on_trace_ready" not in self.profiler_args:
            folder = Path("/tmp/pytorch_profiler", self.manifest["model"].get("modelName", ""))  # noqa: S108
            self.profiler_args["on_trace_ready"] = torch.profiler.tensorboard_trace_handler(str(folder))
        with torch.profiler.profile(**self.profiler_args) as profile:
            output = self._run_stages(data)
        logger.info(profile.key_averages().table(sort_by="cpu_time_total", row_limit=10))
        return output, profile

    def _load_serialized(self, path: str) -> Any:
        if path.endswith(".pt"):
            model = self._load_torchscript_model(path)
            model.eval()
            return model
        if path.endswith(".onnx"):
            return _load_onnx(path, self.map_location)
        if path.endswith(".so") and self._use_torch_export_aot_compile():
            return self._load_torch_export_aot_compile(path)
        raise RuntimeError("No model weights could be loaded")

    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        import torch

        return torch.jit.load(model_pt_path, map_location=self.device)

    def _load_torch_export_aot_compile(self, model_so_path: str) -> Any:
        import torch._export

        return torch._export.aot_load(model_so_path, self.map_location or "cpu")  # noqa: SLF001

    def _load_pickled_model(self, model_dir: str, model_file: str, model_pt_path: str | None) -> Any:
        """Instantiate the only class that `model_file` defines, with the saved weights."""
        if not Path(model_dir, model_file).is_file():
            raise RuntimeError("Missing the model.py file")
        classes = list_classes_from_module(importlib.import_module(model_file.partition(".")[0]))
        if len(classes) != 1:
            raise ValueError(f"Expected only one class as model definition. {classes}")
        model: Any = classes[0]()
        if model_pt_path:
            import torch

            model.load_state_dict(torch.load(model_pt_path, map_location=self.device))
        return model

    def _use_torch_export_aot_compile(self) -> bool:
        pt2 = self.model_yaml_config.get("pt2")
        export = pt2.get("export") if isinstance(pt2, dict) else None
        return isinstance(export, dict) and bool(export.get("aot_compile"))

    def _compile(self) -> None:
        options = compile_options(self.model_yaml_config.get("pt2"))
        if options is None:
            return
        import torch

        try:
            self.model = torch.compile(self.model, **options)
        except Exception:
            logger.warning("Compiling the model with %s has failed; it is used as it is.", options, exc_info=True)


def compile_options(pt2: Any) -> dict[str, Any] | None:
    """
    Return the arguments for `torch.compile` by `pt2` of the model's configuration; None: do not compile.

    `pt2` is `{"compile": {"enable": true, ...}}`, or in its older form a backend or the arguments.
    """
    if pt2 is None or (isinstance(pt2, dict) and "export" in pt2 and "compile" not in pt2):
        return None
    if isinstance(pt2, str):
        return {"backend": pt2}
    if not isinstance(pt2, dict):
        raise TypeError("pt2 should be str or dict")
    if "compile" not in pt2:
        return pt2
    options = dict(pt2["compile"])
    return options if options.pop("enable", False) else None


def _choose_device(gpu_id: int | None) -> tuple[str, Any]:
    import torch

    if gpu_id is not None and torch.cuda.is_available():
        return "cuda", torch.device(f"cuda:{gpu_id}")
    if gpu_id is not None and torch.backends.mps.is_available():
        return "mps", torch.device("mps")
    return "cpu", torch.device("cpu")


def _load_onnx(path: str, map_location: str | None) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise RuntimeError(f"No model weights could be loaded: {path} needs the package onnxruntime.") from error
    providers = ["CUDAExecutionProvider"] if map_location == "cuda" else []
    return onnxruntime.InferenceSession(path, providers=[*providers, "CPUExecutionProvider"])
