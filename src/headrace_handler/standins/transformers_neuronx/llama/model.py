"""Stand-in for `transformers_neuronx.llama.model`."""

from ..module import CpuModelForSampling


class LlamaForSampling(CpuModelForSampling):
    """A Llama, or another decoder that transformers can load."""
