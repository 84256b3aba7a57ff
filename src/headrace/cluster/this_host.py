"""The resources of this machine; a separate module, because importers of `instance_types` must not load the runner."""

from headrace.cluster.instance_types import Host
from headrace.runner.cpu import default_threads
from headrace.runner.memory import available_memory_bytes


def this_host() -> Host:
    """Return the cores and memory that this process may use."""
    return Host(num_cores=default_threads(), memory_bytes=available_memory_bytes())
