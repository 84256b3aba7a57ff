"""Stand-in for AWS's `torch_neuronx` on a host without Neuron devices: enough for code that asks for their number."""

from .xla_impl import data_parallel

__all__ = ["data_parallel"]


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"torch_neuronx.{name} needs a Neuron device and AWS's package. This is a stand-in of Headrace, which has "
        "torch_neuronx.xla_impl.data_parallel.device_count only."
    )
