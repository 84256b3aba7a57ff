"""A native server imports neither torch, transformers, vLLM nor OpenTelemetry: the base install has none of them."""

import subprocess
import sys

MODULES = (
    "headrace.inference.backends.loading, headrace.inference.engine.loading.assembly, "
    "headrace.inference.runner.native, headrace.serving.server.main"
)


def test_neither_the_native_backend_nor_the_choice_of_it_imports_another() -> None:
    facts = "headrace.inference.backends.loading.host_facts({})"
    code = f"import sys, {MODULES}; {facts}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert not {"opentelemetry", "torch", "transformers", "triton", "vllm"} & set(done.stdout.split())
