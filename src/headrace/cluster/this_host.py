"""What this machine has for workers. Apart from the table of instance types, whose readers know no runner."""

from headrace.cluster.instance_types import Host
from headrace.runner.cpu import default_threads
from headrace.runner.memory import available_memory_bytes


def this_host() -> Host:
    """What this process may use."""
    return Host(num_cores=default_threads(), memory_bytes=available_memory_bytes())
