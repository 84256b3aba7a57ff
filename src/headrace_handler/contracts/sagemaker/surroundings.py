"""The surroundings of user code: variables, the log, and the model's folder, in containers `/opt/ml/model`."""

import logging
import os
from pathlib import Path

from headrace_handler.contract import Load

_log = logging.getLogger(__name__)

CONTAINER_FOLDER = Path("/opt/ml/model")
_MAX_FILE_BYTES = 1 << 20


def prepare_process(load: Load) -> None:
    """Set up what the containers set up before they import user code: variables and the level of the log."""
    os.environ["SM_MODEL_DIR"] = str(load.model_dir)
    if load.options.get("profile") == "xgboost":
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # read once, when xgboost is imported
    level = os.environ.get("SAGEMAKER_CONTAINER_LOG_LEVEL", "")
    if level.isascii() and level.isdigit():
        logging.getLogger().setLevel(int(level))


def warn_of_literals(program: Path, model_dir: Path) -> None:
    """Log each file of the program's folder that names the container's folder, if the model is not there."""
    if CONTAINER_FOLDER.exists() and CONTAINER_FOLDER.samefile(model_dir):
        return
    for file in sorted(program.parent.rglob("*.py")):
        if file.stat().st_size <= _MAX_FILE_BYTES and bytes(CONTAINER_FOLDER) in file.read_bytes():
            _log.warning(
                "%s names %s, and the model is in %s. Use the argument of model_fn, or the variable SM_MODEL_DIR.",
                file,
                CONTAINER_FOLDER,
                model_dir,
            )
