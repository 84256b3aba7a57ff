"""Stand-in for `transformers_neuronx.config`: settings of the compiler, which are kept and have no effect on a CPU."""

from types import SimpleNamespace


class GenerationConfig(SimpleNamespace):
    """Sampling on the device. On a CPU, the arguments of `generate` and `sample` decide."""


class QuantizationConfig(SimpleNamespace):
    """Options of the quantization on the device."""


class ContinuousBatchingConfig(SimpleNamespace):
    """Shapes for continuous batching on the device."""


class NeuronConfig(SimpleNamespace):
    """Options of the compiler for the Neuron device."""
