import os
from pathlib import PurePath

from . import _content_types

base_dir = os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml")
code_dir = str(PurePath(base_dir, "code"))
# Set by the process that serves: the model need not lie in the container's folder.
model_dir = os.environ.get("SM_MODEL_DIR") or str(PurePath(base_dir, "model"))
input_dir = str(PurePath(base_dir, "input"))
output_dir = str(PurePath(base_dir, "output"))
output_data_dir = str(PurePath(output_dir, "data"))


def num_cpus() -> int:
    return os.cpu_count() or 1


def num_gpus() -> int:
    """Return the GPUs that the process may see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return len([device for device in visible.split(",") if device.strip() not in {"", "-1"}])


class ServingEnv:
    """A snapshot of the settings; unset ones have the image's defaults."""

    def __init__(self) -> None:
        program = os.environ.get("SAGEMAKER_PROGRAM")
        self.module_name = program and program.removesuffix(".py")
        self.user_entry_point = program
        self.module_dir = os.environ.get("SAGEMAKER_SUBMIT_DIRECTORY", code_dir)
        self.model_dir = model_dir
        self.current_host = os.environ.get("SM_CURRENT_HOST")
        self.num_gpus = num_gpus()
        self.num_cpus = num_cpus()
        self.log_level = int(os.environ.get("SAGEMAKER_CONTAINER_LOG_LEVEL", "20"))
        self.use_nginx = os.environ.get("SAGEMAKER_USE_NGINX", "true").lower() in {"y", "yes", "t", "true", "on", "1"}
        self.model_server_timeout = int(os.environ.get("SAGEMAKER_MODEL_SERVER_TIMEOUT", "60"))
        self.model_server_workers = int(os.environ.get("SAGEMAKER_MODEL_SERVER_WORKERS") or num_cpus())
        self.framework_module = os.environ.get("SAGEMAKER_SERVING_MODULE")
        self.default_accept = os.environ.get("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT", _content_types.JSON)
        self.http_port = os.environ.get("SAGEMAKER_BIND_TO_PORT", "8080")
        self.safe_port_range = os.environ.get("SAGEMAKER_SAFE_PORT_RANGE")
