"""
The variables that point a shell, and what is started from it, at a platform. Pure: text in, text out.

`shell_lines` gives lines for a POSIX shell that set them and remember what was there; `undo_lines` puts that back.
`dotenv_lines` are for files that CI systems and editors read.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SHELL_FOLDER = Path(__file__).parent / "shell"
"""Holds the `sitecustomize.py` that redirects STS, and a configuration of the SageMaker SDK."""

MARK = "_HEADRACE_ENV"
"""Names the variables that were set, in a shell that is pointed at a platform."""
_OLD = "_HEADRACE_OLD_"
_PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_LOCAL_HOSTS = ("127.0.0.1", "localhost")
_CLEARED = (
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_USE_DUALSTACK_ENDPOINT",
    "AWS_USE_FIPS_ENDPOINT",
)
"""Would lead requests elsewhere, or mix the credentials of another account in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a shell is to be pointed at."""

    url: str
    region: str
    access_key: str = "headrace"
    """Any will do where the platform asks for none."""
    secret_key: str = "headrace"  # noqa: S105 -- accepted only where anything is

    def __repr__(self) -> str:
        return f"Target(url={self.url!r}, region={self.region!r}, access_key={self.access_key!r}, secret_key='***')"


def variables(target: Target, env: Mapping[str, str]) -> dict[str, str | None]:
    """
    What to set, and what to clear (None).

    Args:
        target: the platform.
        env: the environment that it is set in: lists are added to, addresses of single services are cleared.
    """
    values: dict[str, str | None] = {
        "AWS_ENDPOINT_URL": target.url,
        "AWS_ACCESS_KEY_ID": target.access_key,
        "AWS_SECRET_ACCESS_KEY": target.secret_key,
        "AWS_REGION": target.region,
        "AWS_DEFAULT_REGION": target.region,
        "SAGEMAKER_ADMIN_CONFIG_OVERRIDE": str(SHELL_FOLDER / "sagemaker.yaml"),
        "PYTHONPATH": _prepended(str(SHELL_FOLDER), env.get("PYTHONPATH", "")),
    }
    if any(env.get(name) for name in _PROXIES):
        values |= {name: _with_local_hosts(env.get(name, "")) for name in ("NO_PROXY", "no_proxy")}
    cleared = (name for name in env if name in _CLEARED or name.startswith("AWS_ENDPOINT_URL_"))
    return values | dict.fromkeys(sorted(cleared))


def shell_lines(target: Target, env: Mapping[str, str]) -> list[str]:
    """Lines for `eval`. A shell that is pointed at a platform already is pointed at this one."""
    outer = outside(env)
    values = variables(target, outer)
    lines = undo_lines(env)
    for name, value in values.items():
        if name in outer:
            lines.append(f'export {_OLD}{name}="${name}"')  # by the shell: a secret must not be printed
        lines.append(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")
    return [*lines, f"export {MARK}={shlex.quote(','.join(values))}"]


def undo_lines(env: Mapping[str, str]) -> list[str]:
    """Lines that take everything back; none in a shell that is not pointed at a platform."""
    lines = []
    for name in _marked(env):
        if _OLD + name in env:
            lines += [f'export {name}="${_OLD}{name}"', f"unset {_OLD}{name}"]
        else:
            lines.append(f"unset {name}")
    return [*lines, f"unset {MARK}"] if lines else []


def dotenv_lines(target: Target, env: Mapping[str, str]) -> list[str]:
    """`NAME=value`, one a line; what has to be cleared is left to whoever reads the file."""
    return [f"{name}={value}" for name, value in variables(target, outside(env)).items() if value is not None]


def outside(env: Mapping[str, str]) -> dict[str, str]:
    """The environment as it was before it was pointed at a platform."""
    names = _marked(env)
    kept = {name: value for name, value in env.items() if name not in names and not name.startswith(_OLD)}
    kept.pop(MARK, None)
    return kept | {name: env[_OLD + name] for name in names if _OLD + name in env}


def _marked(env: Mapping[str, str]) -> list[str]:
    """Only names that could have been written here: they go into lines that a shell runs."""
    names = env.get(MARK, "").split(",")
    return [name for name in names if name.isidentifier() and name.isascii()]


def _prepended(folder: str, path: str) -> str:
    others = [part for part in path.split(":") if part and part != folder]
    return ":".join([folder, *others])


def _with_local_hosts(hosts: str) -> str:
    known = [host for host in hosts.split(",") if host]
    return ",".join([*known, *(host for host in _LOCAL_HOSTS if host not in known)])
