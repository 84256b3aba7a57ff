"""Settings of the model server about a model's own code: whether it runs, and what it may do."""

from dataclasses import dataclass

from headrace.serving.settings import rules
from headrace.serving.settings.many_models_settings import ManyModelsSettings
from headrace.serving.settings.rules import setting
from headrace.serving.settings.values import env_name

ISOLATION_VARIABLES = frozenset(
    env_name(name)
    for name in (
        *("sandbox", "code_network", "code_folders"),
        *("code_max_processes", "code_memory_bytes", "code_temporary_bytes"),
    )
)
"""Variables of the sandbox, which the owner of a platform decides for all models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSettings(ManyModelsSettings):  # a chain: classes with slots have one base
    """The settings of `ServerSettings` that concern a model's own code."""

    handler: str = setting(rules.choice("auto", "native", "handler", "djl", "sagemaker", "torchserve"), "auto")
    """
    What serves the model: its own code, or Headrace's engine. `auto` is the model's own code if it has some, see
    docs/custom-code/README.md, else the engine; `native` is always the engine; with any other value the server starts
    with the model's own code or not at all. Anything but `native` is your consent: without it, `headrace serve` runs
    no code of a model.
    """

    trust_model_files: bool = setting(rules.boolean(), False)
    """
    Let files in the model's folder set what flags and the environment may. That is another model, paths outside the
    folder, origins, code of a checkpoint; otherwise they set formats and limits only. Default: that of `container`.
    """

    trust_remote_code: bool = setting(rules.boolean(), False)
    """
    Run Python code that comes with the checkpoint (`transformers`, `vllm`). The whole server then runs in the
    `sandbox`; with that off, the code can do anything that your user can.
    """

    sandbox: str = setting(rules.choice("auto", "require", "off"), "auto")
    """
    Sandbox of a model's own code, see docs/sandbox.md. `auto`: every part that this kernel allows; the log says which.
    `require`: run no code unless all parts are in force.
    """

    code_network: str = setting(rules.choice("all", "loopback", "none"), "all")
    """
    Network of a model's own code. `loopback`: one of its own, on which only its own processes listen. Packages of a
    requirements.txt are installed over the network in any case, unless SERVING_OFFLINE is set.
    """

    code_folders: tuple[str, ...] = setting(rules.names(), ())
    """Folders and files that sandboxed code may read beside its model and its Python, separated by commas."""

    code_max_processes: int = setting(rules.integer(1), 4096)
    """
    Most processes and threads of one process of a model's code with all that it starts. The kernel rounds it up to 301,
    and has such a limit from Linux 6.14 on, for other users than root from 5.14 on.
    """

    code_memory_bytes: int | None = setting(rules.size(), None)
    """Most private memory of each process of sandboxed code. Default: no limit of its own."""

    code_temporary_bytes: int | None = setting(rules.size(), None)
    """Size of the `/tmp` that sandboxed code has for itself, in memory. Default: half of the machine's memory."""

    management_address: str | None = setting(rules.address(), "http://127.0.0.1:8081")
    """
    Address of TorchServe's management API, for models in TorchServe's format; `off` for none. It registers models,
    which is running code: an address other than loopback needs `api_key`. On the platform it is off.
    """

    metrics_address: str | None = setting(rules.address(), "http://127.0.0.1:8082")
    """Address of TorchServe's metrics API, for models in TorchServe's format; `off` for none."""
