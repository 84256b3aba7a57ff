"""The heads of attention where they differ between layers, and the keys that layers share."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The heads of the attention of a layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    keys_as_values: bool = False
    """The layer has no v: its values are the projected keys, before their norm and rotation (Gemma 4)."""

    @property
    def group_size(self) -> int:
        """Number of query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        return self.num_kv_heads * self.head_dim
