"""Stand-in for AWS's `torch_neuronx` on a host without Neuron devices: enough for code that asks for their number."""

import os

from headrace_handler.submodules import add_submodules


def device_count() -> int:
    """Return the NeuronCores that this process asked for in `NEURON_RT_NUM_CORES` (default 1): the CPU plays them."""
    return int(os.environ.get("NEURON_RT_NUM_CORES", "1"))


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"torch_neuronx.{name} needs a Neuron device and AWS's package. This is a stand-in of Headrace, which has "
        "torch_neuronx.xla_impl.data_parallel.device_count only."
    )


add_submodules(__name__, {"xla_impl": "", "xla_impl.data_parallel": "device_count"})
