"""A server with the native backend never imports torch, transformers or vLLM: the base install has none of them."""

import subprocess
import sys

MODULES = "headrace.backends.loading, headrace.server.main, headrace.engine.loading.assembly, headrace.runner.native"


def test_the_native_backend_imports_no_other() -> None:
    code = f"import sys, {MODULES}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "triton", "vllm"} & set(done.stdout.split())
