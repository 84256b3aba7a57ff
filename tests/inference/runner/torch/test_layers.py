"""Parts of a network, without one."""

import torch

from headrace.inference.models.experts import MoeSpec
from headrace.inference.runner.torch.layers import Experts, Linear, route
from tests.inference.runner.native_models import small_spec

MOE = MoeSpec(num_experts=5, top_k=2, expert_size=16, tolerance=0.1)


def test_choices_are_sorted_by_expert_with_the_first_row_of_each():
    routing = route(torch.tensor([[3, 0], [0, 4], [3, 1]]), 5)
    assert routing.experts.tolist() == [0, 0, 1, 3, 3, 4]
    assert routing.starts.tolist() == [0, 2, 3, 3, 5, 6]
    assert routing.starts.dtype == torch.int32
    assert routing.places.tolist() == [1, 2, 5, 0, 4, 3]


def test_the_host_reads_nothing_to_mix_experts():
    """A tensor on the device meta has a shape and no numbers: reading one of them is an error."""
    router = Linear(torch.empty(5, 8, device="meta"), None, {})
    experts = Experts(
        small_spec(moe=MOE),
        MOE,
        router,
        lambda x, _: x.new_empty(len(x), 2 * MOE.expert_size),
        lambda x, _: x.new_empty(len(x), 8),
        None,
        None,
    )
    assert experts(torch.empty(7, 8, device="meta")).shape == (7, 8)
