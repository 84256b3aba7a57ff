import numpy as np
import torch

from headrace.inference.runner.torch.batch import to_device
from headrace.inference.runner.torch.kv_cache import KvCache, KvShape, block_bytes
from tests.inference.runner.steps import make_step


def test_a_step_becomes_tensors_with_positions_and_slots():
    step = make_step(([7, 8, 9], 2, [5, 1]), ([4], 4, [0, 3]))
    batch = to_device(step, block_tokens=4, device="cpu")
    assert batch.token_ids.tolist() == [7, 8, 9, 4]
    assert batch.positions.tolist() == [2, 3, 4, 4]
    assert batch.slots.tolist() == [22, 23, 4, 12]
    assert batch.query_starts.tolist() == [0, 3, 4]
    assert batch.context_lens.tolist() == [2, 4]
    assert batch.block_tables.tolist() == [[5, 1], [0, 3]]
    assert batch.rows.tolist() == [2, 3]
    assert batch.hidden_rows.tolist() == []
    assert (batch.max_query, batch.max_context) == (3, 5)
    assert {tensor.dtype for tensor in (batch.token_ids, batch.slots, batch.block_tables)} == {torch.int32}


def test_the_cache_keeps_the_layers_apart_and_writes_only_the_slots_of_the_step():
    shapes = [KvShape(2, 3, 3), KvShape(1, 5, 2)]
    cache = KvCache(shapes, num_blocks=4, block_tokens=2, dtype=torch.float32, device="cpu")
    slots = torch.tensor([7, -1, 2], dtype=torch.int32)
    keys, values = torch.ones(3, 1, 5), torch.full((3, 1, 2), 2.0)
    keys[1] = values[1] = 9.0
    cache.store(keys, values, 1, slots)
    key_cache, value_cache = cache.layer(1)
    assert key_cache.shape == (4, 2, 1, 5)
    assert value_cache.shape == (4, 2, 1, 2)
    np.testing.assert_array_equal(key_cache.flatten(0, 1)[:, 0, 0], [0, 0, 1, 0, 0, 0, 0, 1])
    np.testing.assert_array_equal(value_cache.flatten(0, 1)[:, 0, 1], [0, 0, 2, 0, 0, 0, 0, 2])
    assert not any(part.any() for part in cache.layer(0))


def test_a_block_takes_the_memory_of_its_tokens_in_all_layers():
    shapes = [KvShape(2, 3, 3), KvShape(1, 5, 2)]
    assert block_bytes(shapes, block_tokens=32, dtype=torch.bfloat16) == 32 * (12 + 7) * 2
