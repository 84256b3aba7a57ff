"""The surroundings of user code: variables and the log."""

import logging
import os

from headrace_handler.contract import Load


def prepare_process(load: Load) -> None:
    """Set up what the containers set up before they import user code: variables and the level of the log."""
    os.environ["SM_MODEL_DIR"] = str(load.model_dir)
    if load.options.get("profile") == "xgboost":
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # read once, when xgboost is imported
    level = os.environ.get("SAGEMAKER_CONTAINER_LOG_LEVEL", "")
    if level.isascii() and level.isdigit():
        logging.getLogger().setLevel(int(level))
