# Types of the native module (csrc/bindings.cpp, csrc/bind_step.cpp, csrc/bind_probes.cpp).

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.inference.runner.step import Bias, Float32, History, Int32, Mask, StateStep

Bytes: TypeAlias = npt.NDArray[np.uint8]

BLOCK_TOKENS: int

class AttentionShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    keys_as_values: bool

class Mla:
    rank: int
    query_rank: int
    key_dim: int
    rope_dim: int
    value_dim: int
    eps: float
    growth: float
    growth_period: int
    def __init__(self) -> None: ...

class ModelConfig:
    mla: Mla
    dtype: str
    kv_dtype: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    attention_shapes: list[AttentionShape]
    kv_sources: list[int]
    mixers: list[str]
    conv_taps: int
    delta_key_heads: int
    delta_value_heads: int
    delta_key_dim: int
    delta_value_dim: int
    delta_taps: int
    delta_is_tiled: bool
    delta_by_channel: bool
    delta_beta_scale: float
    delta_norm_eps: float
    conv_bias: bool
    mlps: list[bool]
    attention_beside: bool
    ssd_heads: int
    ssd_head_dim: int
    ssd_state_size: int
    ssd_groups: int
    ssd_norm: bool
    ssd_norm_eps: float
    vocab_size: int
    num_positions: int
    num_token_types: int
    causal: bool
    embedding_norm: bool
    first_attn_norm: bool
    activation: str
    norm: str
    norms: str
    norm_bias: bool
    parallel: bool
    shared_norm: bool
    gated_mlp: bool
    tie_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    state_norms: str
    qk_norm: str
    mlp_bias: bool
    head_bias: bool
    norm_eps: float
    post_norm_eps: float
    embedding_scale: float
    attention_scale: float
    attention_softcap: float
    logit_softcap: float
    qkv_clip: float
    swiglu_limit: float
    attention_gate: str
    gate_activation: str
    sinks: bool
    value_norm: bool
    layer_scales: bool
    layer_input_size: int
    intermediate_sizes: list[int]
    own_norms: bool
    windows: list[int]
    distance_slopes: list[float]
    num_experts: int
    top_k: int
    expert_size: int
    num_shared_experts: int
    renormalize: bool
    expert_bias: bool
    router_bias: bool
    expert_tolerance: float
    scoring: str
    group_score: str
    num_groups: int
    top_groups: int
    choice_bias: bool
    router_softcap: float
    sum_floor: float
    factor_scale: float
    latent_size: int
    shared_size: int
    shared_gate: bool
    expert_layers: list[bool]
    layer_formats: dict[str, str]
    rope_frequencies: list[list[float]]
    rope_factors: list[float]
    rope_of_layer: list[int]
    def __init__(self) -> None: ...

class Limits:
    num_blocks: int
    max_step_tokens: int
    max_step_sequences: int
    max_step_rows: int
    max_context_tokens: int
    max_adapters: int
    max_adapter_rank: int
    num_state_slots: int
    max_draft_tokens: int
    def __init__(self) -> None: ...

class Slot:
    @property
    def name(self) -> str: ...
    @property
    def is_vector(self) -> bool: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def num_columns(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...

class Arena:
    def __init__(self, num_bytes: int) -> None: ...
    @staticmethod
    def map(path: str, offset: int, num_bytes: int, *, writable: bool) -> Arena: ...
    def populate(self, num_threads: int) -> None: ...
    def view(self) -> Bytes: ...
    def fill(self, source: Bytes, num_threads: int) -> int: ...
    def checksum(self, num_threads: int) -> int: ...

class ThreadBudget:
    def __init__(self, num_threads: int) -> None: ...
    def size(self, now: int) -> int: ...
    def record(self, now: int, elapsed: int, lost: int) -> None: ...

class Runtime:
    def __init__(self, config: ModelConfig, limits: Limits, weights: Arena, *, num_threads: int, isa: str) -> None: ...
    def start_profile(self) -> None: ...
    def profile(self) -> list[dict[str, float]]: ...
    @property
    def isa(self) -> str: ...
    @property
    def has_native_bf16(self) -> bool: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def num_active_threads(self) -> int: ...
    @property
    def num_barrier_rounds(self) -> int: ...
    @property
    def weights_bytes(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def kv_bytes(self) -> int: ...
    @property
    def state_bytes(self) -> int: ...
    def kv_blocks(self) -> Bytes: ...
    def state_slots(self) -> Bytes: ...
    def execute(
        self,
        token_ids: Int32,
        query_starts: Int32,
        context_lens: Int32,
        block_tables: Int32,
        rows: Int32,
        hidden_rows: Int32,
        sampling: Bytes,
        histories: tuple[History, ...],
        biases: tuple[Bias, ...],
        masks: tuple[Mask, ...],
        adapters: Int32 | None,
        token_types: Int32 | None,
        states: StateStep | None = None,
        layer_inputs: Float32 | None = None,
    ) -> tuple[Int32, Float32, Int32, Int32, Float32, Float32]: ...
    def logits(
        self,
        token_ids: Int32,
        query_starts: Int32,
        context_lens: Int32,
        block_tables: Int32,
        rows: Int32,
        adapters: Int32 | None,
        states: StateStep | None = None,
        layer_inputs: Float32 | None = None,
    ) -> Float32: ...
    def router_scores(
        self,
        token_ids: Int32,
        query_starts: Int32,
        context_lens: Int32,
        block_tables: Int32,
        states: StateStep | None = None,
    ) -> Float32: ...
    def clear_adapter(self, slot: int) -> None: ...
    def set_adapter(
        self, slot: int, layer: int, matrix: str, parts: list[tuple[Float32, Float32, int, bool] | None]
    ) -> None: ...

class ProductTimer:
    def __init__(
        self, kind: str, num_outputs: int, num_inputs: int, *, num_copies: int, isa: str, num_threads: int
    ) -> None: ...
    @property
    def matrix_bytes(self) -> int: ...
    def time(self, num_rows: int, num_products: int) -> float: ...

def peak_operations(kind: str, *, isa: str, num_threads: int) -> float: ...
def multiply(
    kind: str, panels: Bytes, rows: npt.NDArray[np.float32], *, terms: int, isa: str
) -> npt.NDArray[np.float32]: ...
def read_bandwidth(memory: Arena, *, isa: str, num_threads: int) -> float: ...
def time_runs(
    num_threads: int, *, num_runs: int, num_barriers: int, pause_s: float = 0.0, checks: bool = False
) -> float: ...
def layout(config: ModelConfig) -> list[Slot]: ...
def layout_bytes(config: ModelConfig) -> int: ...
def quantize_int4(
    values: npt.NDArray[np.float32],
    importance: npt.NDArray[np.float32] | None,
    *,
    bf16_scales: bool = False,
    num_threads: int,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint16], npt.NDArray[np.uint8]]: ...
def pack_tensor(
    arena: Arena,
    slot: Slot,
    encoding: str,
    data: Bytes,
    num_rows: int,
    num_columns: int,
    *,
    first_row: int,
    interleaved: bool,
    num_threads: int,
) -> None: ...
def workspace_bytes(config: ModelConfig, limits: Limits, num_threads: int) -> int: ...
def adapter_bytes(config: ModelConfig, limits: Limits) -> int: ...
def kv_block_bytes(config: ModelConfig) -> int: ...
def state_slot_bytes(config: ModelConfig, max_draft_tokens: int) -> int: ...
def available_isas() -> list[str]: ...
def best_isa() -> str: ...
def built_isas() -> list[str]: ...
def cpu_features() -> list[str]: ...
def has_native_bf16(isa: str) -> bool: ...
def sample_rows(
    logits: Float32,
    sampling: Bytes,
    histories: list[tuple[int, Int32, int]],
    biases: list[tuple[int, Int32, Float32]],
    masks: list[tuple[int, npt.NDArray[np.uint32]]],
) -> tuple[Int32, Float32, Int32, Int32, Float32]: ...
