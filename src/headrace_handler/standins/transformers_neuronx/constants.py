"""Stand-in for `transformers_neuronx.constants`: layouts of tensors on a device, which a CPU has no use for."""

from enum import Enum

LAYOUT_BSH = "BSH"
LAYOUT_HSB = "HSB"
LAYOUT_SBH = "SBH"


class GQA(Enum):
    """Way in which cores share the heads of keys and values."""

    SHARD_OVER_HEADS = "shard-over-heads"
    SHARD_OVER_BATCH = "shard-over-batch"
    REPLICATED_HEADS = "replicated-heads"
    ALL_GATHER_HEADS = "all-gather-heads"
