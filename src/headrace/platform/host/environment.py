"""
Environment variables that point a shell and its programs at a platform. Pure: text in, text out.

`shell_lines` returns lines for a POSIX shell that set them and save the old values; `undo_lines` restores those.
`dotenv_lines` is for files that CI systems and editors read.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SHELL_FOLDER = Path(__file__).parent / "shell"
"""Contains the `sitecustomize.py` that redirects clients of AWS, and a configuration of the SageMaker SDK."""

MARK = "_HEADRACE_ENV"
"""Lists the variables set in a shell that points at a platform."""
_OLD = "_HEADRACE_OLD_"
_PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_LOCAL_HOSTS = ("127.0.0.1", "localhost")
_CLEARED = (
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_USE_DUALSTACK_ENDPOINT",
    "AWS_USE_FIPS_ENDPOINT",
)
"""Variables that would redirect requests or add the credentials of another account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    url: str
    region: str
    access_key: str = "headrace"
    """Any value works if the platform is open."""
    secret_key: str = "headrace"  # noqa: S105 -- valid only where any key is
    ca_bundle: str | None = None
    """File with the certificates to trust; None: those that clients trust anyway."""

    def __repr__(self) -> str:
        return f"Target(url={self.url!r}, region={self.region!r}, access_key={self.access_key!r}, secret_key='***')"


def variables(target: Target, env: Mapping[str, str]) -> dict[str, str | None]:
    """
    Return the variables to set, and to clear (None), in the environment `env`.

    Its lists are extended, its endpoints of single services cleared.
    """
    others = [part for part in env.get("PYTHONPATH", "").split(":") if part and part != str(SHELL_FOLDER)]
    openai = {"OPENAI_BASE_URL": f"{target.url}/v1", "OPENAI_API_KEY": target.secret_key}
    values: dict[str, str | None] = {
        **({} if env.get("OPENAI_API_KEY") else openai),  # code in this shell may need OpenAI's own service
        "AWS_ENDPOINT_URL": target.url,
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false",  # precedes a profile that ignores them
        "AWS_DISABLE_HOST_PREFIX_INJECTION": "true",  # there is no `sync-127.0.0.1` and no `data-localhost`
        "AWS_ACCESS_KEY_ID": target.access_key,
        "AWS_SECRET_ACCESS_KEY": target.secret_key,
        "AWS_REGION": target.region,
        "AWS_DEFAULT_REGION": target.region,
        "SAGEMAKER_ADMIN_CONFIG_OVERRIDE": str(SHELL_FOLDER / "sagemaker.yaml"),
        "PYTHONPATH": ":".join([str(SHELL_FOLDER), *others]),
    }
    if target.ca_bundle is not None:
        values["AWS_CA_BUNDLE"] = target.ca_bundle
    if any(env.get(name) for name in _PROXIES):
        for name in ("NO_PROXY", "no_proxy"):
            known = [host for host in env.get(name, "").split(",") if host]
            values[name] = ",".join([*known, *(host for host in _LOCAL_HOSTS if host not in known)])
    cleared = (name for name in env if name in _CLEARED or name.startswith("AWS_ENDPOINT_URL_"))
    return values | dict.fromkeys(sorted(cleared))


def shell_lines(target: Target, env: Mapping[str, str]) -> list[str]:
    """Return lines for `eval`; they also work in a shell that points at another platform."""
    outer = original_environment(env)
    values = variables(target, outer)
    lines = undo_lines(env)
    for name, value in values.items():
        if name in outer:
            lines.append(f'export {_OLD}{name}="${name}"')  # expanded by the shell: a secret must not be printed
        lines.append(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")
    return [*lines, f"export {MARK}={shlex.quote(','.join(values))}"]


def undo_lines(env: Mapping[str, str]) -> list[str]:
    """Return lines that restore the old environment; empty for a shell that does not point at a platform."""
    lines = []
    for name in _marked(env):
        if _OLD + name in env:
            lines += [f'export {name}="${_OLD}{name}"', f"unset {_OLD}{name}"]
        else:
            lines.append(f"unset {name}")
    return [*lines, f"unset {MARK}"] if lines else []


def dotenv_lines(target: Target, env: Mapping[str, str]) -> list[str]:
    """Return lines `NAME=value`; a file cannot clear variables."""
    return [
        f"{name}={value}" for name, value in variables(target, original_environment(env)).items() if value is not None
    ]


def original_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment as it was before it pointed at a platform."""
    names = _marked(env)
    kept = {name: value for name, value in env.items() if name not in names and not name.startswith(_OLD)}
    kept.pop(MARK, None)
    return kept | {name: env[_OLD + name] for name in names if _OLD + name in env}


def _marked(env: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that were set; only valid names, because the shell evaluates them."""
    names = env.get(MARK, "").split(",")
    return [name for name in names if name.isidentifier() and name.isascii()]
