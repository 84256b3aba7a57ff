"""
Sampling by the rules of `headrace.inference.runner.sampling`, wherever the logits are.

A CPU uses the native sampler. A GPU uses eager torch and two Triton kernels, on the device: only tokens and logprobs
are copied to the host. All of them draw the same token from the same logits.
"""

import numpy as np
from torch import Tensor

from headrace import _native
from headrace.inference.runner.step import SAMPLING_DTYPE, StepInput, StepOutput
from headrace.inference.runner.torch.device_sampling import sample_on_device


def sample(logits: Tensor, step: StepInput) -> StepOutput:
    """
    Sample a token for each row of logits with the parameters in `step.sampling`.

    Args:
        logits: (R, V), row i belongs to `step.rows[i]`.
        step: the step that produced the logits.

    Returns:
        One token for each row, or `NO_TOKEN` (with logprob NaN) where none can be drawn; no hidden states.
    """
    if logits.device.type != "cpu":
        return sample_on_device(logits, step)
    token_ids, logprobs, top_ids, top_logprobs = _native.sample_rows(
        np.ascontiguousarray(logits.float().numpy()),
        step.sampling.view(np.uint8).reshape(len(step.sampling), SAMPLING_DTYPE.itemsize),
        [(item.row, item.tokens, item.num_prompt_tokens) for item in step.histories],
        [(item.row, item.ids, item.values) for item in step.biases],
        [(item.row, item.words) for item in step.masks],
    )
    return StepOutput(token_ids=token_ids, logprobs=logprobs, top_ids=top_ids, top_logprobs=top_logprobs)
