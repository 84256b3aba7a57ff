"""A snapshot of the engine's load and totals."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot of the engine, for metrics, health and the console. Totals count since the start."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    """Blocks that can be allocated now, including unreferenced blocks of the prefix cache."""
    num_cached_blocks: int = 0
    block_tokens: int = 0
    """Tokens per block; 0: the backend has no KV blocks."""
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    output_tokens_total: int = 0
    drafted_tokens_total: int = 0
    """Draft tokens that were verified in a step."""
    accepted_tokens_total: int = 0
    """Draft tokens that were accepted."""
    preemptions_total: int = 0
    num_state_slots: int = 0
    """Slots for states of running sequences and their checkpoints; 0: the model has no state layers."""
    num_live_states: int = 0
    num_checkpoints: int = 0
    checkpoint_hits_total: int = 0
    """Sequences that went on from a checkpoint."""
    recomputed_tokens_total: int = 0
    """Tokens with cached KV that were computed again, since no checkpoint was after them."""
    stored_tokens_total: int = 0
    """Tokens whose KV was read from the prefix cache on disk."""
    stored_bytes: int = 0
    """Size of the folder of the prefix cache on disk; 0: there is none."""
    store_read_bytes_total: int = 0
    store_written_bytes_total: int = 0
    store_dropped_rows_total: int = 0
    """Blocks and states that were not written: the writer was too slow, or the disk was full."""
    store_damaged_files_total: int = 0
    steps_total: int = 0
    step_seconds_total: float = 0.0
    step_thread_seconds_total: float = 0.0
    """The time of each step times the CPU threads that ran it."""
    tokens_in_flight: int = 0
    """Tokens of KV cache held by running sequences."""
