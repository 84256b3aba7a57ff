"""The resources of this machine. Apart from `instance_types` and `local`, whose importers must not load the runner."""

from headrace.cluster.instance_types import Host
from headrace.runner.cpu import default_threads
from headrace.runner.memory import available_memory_bytes


def this_host() -> Host:
    """Return the cores and memory that this process may use."""
    return Host(num_cores=default_threads(), memory_bytes=available_memory_bytes())
