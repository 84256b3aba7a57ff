"""
Inference: from the files of a model to tokens, without HTTP.

`models` finds files and turns them into a spec of the network, weights and a tokenizer. `runner` executes one step of
it: natively (`csrc/`), in numpy (which defines correctness), or in torch. `engine` decides what each step computes: the
scheduler, KV blocks and the prefix cache, drafts, grammars and the text that streams out. `backends` chooses between
this engine and vLLM, transformers or torch, which servers see through one protocol (`engine/backend.py`).

Start with `engine/core/scheduler.py`, `runner/step.py` (all that crosses to a runner) and `models/families/qwen.py` (a
family of models).
"""
