"""Stand-in for `transformers_neuronx.opt.model`."""

from ..module import CpuModelForSampling


class OPTForSampling(CpuModelForSampling):
    """An OPT, or another decoder that transformers can load."""
