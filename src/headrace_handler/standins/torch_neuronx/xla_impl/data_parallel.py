"""Stand-in for `torch_neuronx.xla_impl.data_parallel`."""

import os


def device_count() -> int:
    """Return the NeuronCores that this process asked for in `NEURON_RT_NUM_CORES` (default 1): the CPU plays them."""
    return int(os.environ.get("NEURON_RT_NUM_CORES", "1"))
