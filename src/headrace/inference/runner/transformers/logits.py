"""The call of a network: numpy tokens in, logits of the wanted rows out."""

import inspect

import torch

from headrace.inference.runner.step import Int32


class HeadCall:
    """Calls a network on one row of tokens; the LM head runs on the requested tokens only, if the network can."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._can_skip = "logits_to_keep" in inspect.signature(model.forward).parameters

    def run(self, token_ids: Int32, rows: Int32, **arguments: object) -> torch.Tensor:
        """Return the logits (R, V) of `rows`, in float32; the keywords go to the network."""
        kept = self.on_device(rows)
        if self._can_skip:
            arguments["logits_to_keep"] = kept
        output = self._model(input_ids=self.on_device(token_ids)[None], **arguments)
        logits: torch.Tensor = output.logits[0] if self._can_skip else output.logits[0, kept]
        return logits.float()

    def on_device(self, values: Int32) -> torch.Tensor:
        """Return whole numbers as an index tensor."""
        return torch.as_tensor(values, dtype=torch.long, device=self._device)
