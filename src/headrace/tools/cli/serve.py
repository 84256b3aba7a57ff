"""
`headrace serve`: run a model server.

The code of a model runs only with the user's consent, as its folder may be a download: a flag or variable that says so,
or the answer to a question on a terminal. The answer is kept in the cache, and holds until a file that can run code
changes.
"""

import hashlib
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from headrace.core.errors import SettingsError
from headrace.serving.settings.sources import gather_settings
from headrace.serving.settings.values import env_name
from headrace.tools.cli.command import HelpfulCommand
from headrace.tools.cli.progress import showing_progress
from headrace.tools.cli.ready import print_many_ready, print_ready
from headrace.tools.cli.setting_options import groups_of, merge_rope, rope_options, setting_options
from headrace.tools.cli.user_code import (
    UserCode,
    cache_home,
    find_user_code,
    formatted_notices,
    formatted_overrides,
    formatters_of,
    serve_user_code,
    unpacked,
)
from headrace_handler.stray_files import is_stray

EXAMPLES = """
headrace serve smollm2                        on http://127.0.0.1:8080
headrace serve Qwen/Qwen3-0.6B --dtype w8a8   a model from the Hub in 8 bits
headrace serve ./model.gguf --port 0          a file, on any free port
headrace serve ./my-model --handler auto      run the code that the model has
headrace serve --models ./models              many models, chosen by requests
headrace serve smollm2 --host 0.0.0.0 --api-key K   let others in, with a key
HF_MODEL_ID=smollm2 headrace serve            configured like a container
headrace fit smollm2                          memory needs, without loading it
"""
_COMMON = (
    *(
        "served_model_name",
        "models",
        "host",
        "port",
        "api_key",
        "cors_allow_origins",
        "dtype",
        "threads",
        "max_model_len",
    ),
    *("max_memory_bytes", "handler", "backend", "log_level"),
)
_ANSWERS: Final = "trusted-code.json"
_IMPORTED: Final = (".py", ".pyc", ".so")
_PICKLED: Final = (".pkl", ".pickle", ".cloudpkl", ".joblib", ".jl", ".skops", ".pt", ".pth", ".ckpt")
_PACKED: Final = (".mar", ".war", ".tgz", ".gz", ".zip", ".whl", ".sh")
_CODE_NAMES: Final = frozenset(
    ("serving.properties", "config.properties", "model-config.yaml", "manifest.json", "xgboost-model")
)
_REQUIREMENTS: Final = "requirements"
_MAX_FILES: Final = 100_000
_MAX_READ_BYTES: Final = 32 << 20
"""Of a longer file, size and time of change count: a pickle of gigabytes is not read at each start."""


@click.command(cls=HelpfulCommand, examples=EXAMPLES, groups=groups_of(), common=_COMMON)
@click.argument("model", required=False)
@setting_options()
@rope_options()
def serve(**overrides: Any) -> None:
    """
    Serve a model to clients of OpenAI, Anthropic, Ollama, TGI and SageMaker.

    MODEL is an alias (smollm2), a Hub id, an s3:// prefix, a .gguf file, a folder, or an archive (.mar, .tar.gz). A
    folder or an archive may bring its own inference code (DJL, SageMaker, TorchServe); it runs with --handler auto,
    or after you agree on the terminal.

    Browsers get a chat page at /. Each option is also a variable: --port is HEADRACE_PORT.
    """
    from headrace.inference.backends.facts import runs_on_gpu

    merged = merge_rope(overrides)
    if merged.get("models") or os.environ.get(env_name("models"), "").strip():
        from headrace.platform.cluster.many_models.serve import run_many_models

        sys.exit(run_many_models(merged, os.environ, on_ready=print_many_ready))
    user_code = find_user_code(merged, os.environ)
    if user_code is not None:
        check_consent(user_code, merged, os.environ)
        if user_code.serves:
            sys.exit(serve_user_code(user_code))
        merged = formatted_overrides(merged, os.environ)
    merged = unpacked(merged, os.environ)
    settings, notices = gather_settings(merged, os.environ, on_gpu=runs_on_gpu(os.environ))
    from headrace.serving.server.main import run_server

    if user_code is not None:
        notices = formatted_notices(user_code, notices)
    with showing_progress() as progress:
        formatters = None if user_code is None else formatters_of(user_code, settings, progress)
        on_ready = partial(print_ready, needs_key=settings.api_key is not None)
        code = run_server(settings, notices=notices, progress=progress, on_ready=on_ready, formatters=formatters)
    sys.exit(code)


def ask_on_terminal(code: UserCode, is_changed: bool) -> bool:
    """Return the answer of the user; False without a terminal. `is_changed`: an earlier version was allowed."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    from headrace.core.client_text import printable

    lines = [f"{code.place} brings code{', which has changed since you allowed it' if is_changed else ''}:"]
    lines += [f"  {summary}" for summary in code.summaries or code.reasons]
    rights = {
        "off": "with all rights that you have, in no sandbox",
        "auto": "in a sandbox of the parts that this machine allows (`headrace doctor` names them)",
        "require": "in a sandbox",
    }
    lines.append(f"It runs as your user, {rights[code.settings.sandbox]}. Run it only if you trust its author.")
    click.echo(printable("\n".join(lines)), err=True)
    return click.confirm("Run it?", default=False, err=True)


def check_consent(
    code: UserCode,
    overrides: Mapping[str, object],
    env: Mapping[str, str],
    ask: Callable[[UserCode, bool], bool] = ask_on_terminal,
) -> None:
    """
    Return if the user wants the code of a model to run.

    Raises:
        SettingsError: the user does not want it, or cannot be asked.
    """
    is_given = overrides.get("handler") is not None or env.get(env_name("handler"), "").strip()
    if is_given or code.settings.trust_model_files or not runs_code(code):
        return
    place, digest = str(code.place.resolve()), code_digest(code.place)
    file = cache_home(code.settings) / _ANSWERS
    answers = _read_answers(file)
    if answers.get(place) == digest:
        return
    if not ask(code, place in answers):
        raise SettingsError(
            f"{code.place} brings code that would run as your user: {' '.join(code.reasons)} Expected your consent. "
            "Pass --handler auto to run it, or --handler native to serve the model without it.",
            name="handler",
        )
    _write_answers(file, {**answers, place: digest})


def runs_code(code: UserCode) -> bool:
    """Return whether a file of the model can run code: a pipeline of transformers over weights needs none."""
    plans = [model.plan for model in code.models]
    is_pipeline = bool(plans) and all(
        plan.requirements is None
        and plan.spec is not None
        and plan.spec.load.options.get("profile") == "huggingface"
        and not plan.spec.load.entry
        for plan in plans
    )
    return not is_pipeline or any(path.name.endswith(_IMPORTED) for path in _code_files(code.place))


def code_digest(place: Path) -> str:
    """Return a digest of the names and contents of all files of a model that can run code."""
    total = hashlib.sha256()
    for path in sorted([place] if place.is_file() else _code_files(place)):
        total.update(f"{path.relative_to(place) if path != place else ''}\0".encode(errors="surrogateescape"))
        total.update(_file_digest(path))
    return total.hexdigest()


def _file_digest(path: Path) -> bytes:
    try:
        facts = path.stat()
        # Reading a pipe, or some files of /proc, waits without end.
        is_content = stat.S_ISREG(facts.st_mode) and not path.resolve().is_relative_to("/proc")
        if facts.st_size > _MAX_READ_BYTES or not is_content:
            return f"{facts.st_size} {facts.st_mtime_ns}\0".encode()
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError as error:
        return f"{type(error).__name__}\0".encode()


def _code_files(folder: Path) -> Iterator[Path]:
    """
    Yield the files of a folder that can run code, also behind links.

    Raises:
        SettingsError: there are too many files.
    """
    seen, num_files = set(), 0
    for parent, folders, names in os.walk(folder, followlinks=True):
        facts = os.stat(parent)  # noqa: PTH116 - a loop of links leads to a folder that was seen
        if (facts.st_dev, facts.st_ino) in seen:
            folders.clear()
            continue
        seen.add((facts.st_dev, facts.st_ino))
        num_files += len(names)
        if num_files > _MAX_FILES:
            raise SettingsError(
                f"{folder} has more than {_MAX_FILES} files, too many to remember its code. Pass --handler auto.",
                name="handler",
            )
        folders[:] = [name for name in folders if name != "__pycache__" and not is_stray(name)]
        yield from (Path(parent, name) for name in names if _can_run(name))


def _can_run(name: str) -> bool:
    lower = name.lower()
    is_known = (
        lower.endswith((*_IMPORTED, *_PICKLED, *_PACKED)) or lower in _CODE_NAMES or lower.startswith(_REQUIREMENTS)
    )
    return (is_known or ".so." in lower) and not is_stray(name)


def _read_answers(file: Path) -> dict[str, Any]:
    """Return the digests by folder; empty if the file is missing, broken or could be written by others."""
    try:
        facts = file.stat()
        if facts.st_uid != os.getuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return {}
        answers = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return answers if isinstance(answers, dict) else {}


def _write_answers(file: Path, answers: Mapping[str, str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.write_text(json.dumps(answers, indent=1))
    new.chmod(0o600)
    new.replace(file)
