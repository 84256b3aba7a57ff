"""The vLLM backend: our text on both sides, vLLM's engine between them. Needs the extra `[vllm]`."""
