"""
Latent attention (DeepSeek-V2): all heads attend to one vector of a token, its latent beside a rotated key.

The matrices that make the keys and values of a latent are applied to queries and outputs instead (the absorbed form): a
head's query is `k_b` times its first `key_dim` numbers, beside its rotated ones, and its output is `v_b` times the
weighted sum of latents. So the cache has one KV head of `kv_rank + rope_dim` numbers, whose first `kv_rank` are also
the value. Prompts take this form too, since a row must not depend on the size of its chunk.

Canonical weights, in place of q, k and v (`spec.py`):

    layers.{i}.q_a              (query_rank, hidden)            when `query_rank`
    layers.{i}.q_a_norm         (query_rank,)                   when `query_rank`
    layers.{i}.q_b              (heads * query_dim, query_rank or hidden)
    layers.{i}.kv_a             (kv_rank + rope_dim, hidden)
    layers.{i}.kv_a_norm        (kv_rank,)
    layers.{i}.k_b              (heads * kv_rank, key_dim)      the matrix of each head's keys, transposed
    layers.{i}.v_b              (heads * value_dim, kv_rank)
    layers.{i}.o                (hidden, heads * value_dim)
    layers.{i}.q_a_bias | kv_a_bias                             when `qkv_bias`
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec:
    """The sizes of latent attention; `ModelSpec.head_dim` is `kv_rank + rope_dim`, and there is one KV head."""

    kv_rank: int
    """Size of a latent."""
    query_rank: int = 0
    """Size of the latent of all queries of a token; 0: queries come from the hidden state."""
    key_dim: int
    """Numbers of a head's query that are not rotated."""
    rope_dim: int
    """Numbers of a head's query, and of the key that all heads share, that are rotated."""
    value_dim: int
    """Numbers that a head gives to `o`."""
    norm_eps: float = 1e-6
    """The epsilon of the latents' norms: in transformers it is 1e-6, whatever `rms_norm_eps` is."""

    @property
    def query_dim(self) -> int:
        """Numbers of a head's query before its first part is multiplied by `k_b`."""
        return self.key_dim + self.rope_dim

    def num_parameters(self, hidden_size: int, num_heads: int) -> int:
        """Return the numbers in the matrices of a layer's attention."""
        queries = num_heads * self.query_dim
        from_hidden = (self.query_rank or queries) + self.kv_rank + self.rope_dim + num_heads * self.value_dim
        by_head = num_heads * self.kv_rank * (self.key_dim + self.value_dim)
        return hidden_size * from_hidden + self.query_rank * queries + by_head
