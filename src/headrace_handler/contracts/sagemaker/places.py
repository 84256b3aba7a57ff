"""The model's folder, which in SageMaker's containers is `/opt/ml/model`."""

import logging
import os
from pathlib import Path

_log = logging.getLogger(__name__)

CONTAINER_FOLDER = Path("/opt/ml/model")
_MAX_FILE_BYTES = 1 << 20


def announce(model_dir: Path) -> None:
    """Tell user code and stand-ins the folder by the variable that the containers have for it."""
    os.environ["SM_MODEL_DIR"] = str(model_dir)


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
