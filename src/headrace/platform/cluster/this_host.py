"""The resources of this machine; a separate module, because importers of `instance_types` must not load the runner."""

import os

from headrace.core.gpus import visible_gpus
from headrace.core.host_memory import available_memory_bytes
from headrace.inference.runner.cpu import default_threads
from headrace.platform.cluster.instance_types import Host


def this_host() -> Host:
    """Return the cores, memory and GPUs that this process may use."""
    return Host(num_cores=default_threads(), memory_bytes=available_memory_bytes(), gpus=visible_gpus(os.environ))
