"""The texts with which models announce tool calls in their answers; many are special tokens."""

from typing import Final

TOOL_CALL: Final = "<tool_call>"
TOOL_CALL_END: Final = "</tool_call>"
TOOL_CALLS: Final = "[TOOL_CALLS]"
CALL_ID: Final = "[CALL_ID]"
ARGUMENTS: Final = "[ARGS]"
PYTHON_TAG: Final = "<|python_tag|>"

CALL_STARTS: Final = (TOOL_CALL, TOOL_CALLS, PYTHON_TAG)
"""`<tool_call>`: Hermes, Qwen, SmolLM. `[TOOL_CALLS]`: Mistral. `<|python_tag|>`: Llama 3."""
CALL_MARKERS: Final = (*CALL_STARTS, TOOL_CALL_END, CALL_ID, ARGUMENTS)
"""`[CALL_ID]` and `[ARGS]` separate the name, the id and the arguments in Mistral's newer format."""
