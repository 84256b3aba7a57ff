"""
Models on the Hugging Face Hub: download and cache.

`huggingface_hub` does the work and honours its own environment variables (`HF_TOKEN`, `HF_HUB_OFFLINE`, `HF_HOME` ...).
"""

import glob
import io
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies

from headrace.core.errors import HeadraceError, ModelNotFound
from headrace.core.progress import Progress
from headrace.inference.models.gguf_file import split_parts
from headrace.inference.models.snapshots import choose_files

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, HFCacheInfo

_TRANSFER: Final = "Downloading bytes"
"""Name of the library's second bar, which counts the same bytes as they arrive."""
_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CONNECT_S: Final = 5.0
_GATED: Final = (
    "{repo} is gated: accept its terms on https://huggingface.co/{repo}, then set HF_TOKEN to a token of that account."
)
_NO_MODEL: Final = (
    "There is no model {repo} on the Hub, or it is private. Check the spelling; for a private model set HF_TOKEN."
)
_EXPECTED: Final = ("config.json", "*.safetensors")
_NOT_EXPECTED: Final = ("*/*", ".*", "consolidated*")
"""The files without which the library refuses a cached model offline: fewer than `choose_files`, so that models that an
earlier version downloaded go on working."""
_GGUF_ID: Final = re.compile(rf"({_ID.pattern})/(.+\.gguf)")


@dataclass(frozen=True, slots=True)
class HubRef:
    """A reference to a model on the Hub, or to one of its GGUF files."""

    repo_id: str
    file_name: str | None = None


def parse_hub_ref(ref: str) -> HubRef | None:
    """Parse `org/name` or `org/name/file.gguf`; return None for anything else."""
    if (match := _GGUF_ID.fullmatch(ref)) and not {"", ".", ".."} & {*match[2].split("/")}:
        return HubRef(match[1], match[2])
    return HubRef(ref) if _ID.fullmatch(ref) else None


def fetch_from_hub(ref: HubRef, revision: str | None, progress: Progress) -> Path:
    """
    Return the folder (or GGUF file) of a model in the Hub's cache, downloading it if needed.

    Raises `ModelNotFound` without such a model, a permission or a network; the message says how to fix it.
    """
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download

    with _translated(ref.repo_id, revision):
        source: dict[str, Any] = {
            "revision": revision,
            "tqdm_class": progress_bars(progress, ref.repo_id),
            "local_files_only": not _is_reachable(),
        }
        if ref.file_name is not None:
            names = [str(part) for part in split_parts(Path(ref.file_name))]
            files = [hf_hub_download(ref.repo_id, name, **source) for name in names]
            return Path(files[0])
        if source["local_files_only"]:
            patterns, ignored = list(_EXPECTED), list(_NOT_EXPECTED)
        else:
            files_of_repo = HfApi().model_info(ref.repo_id, revision=revision).siblings or ()
            chosen = choose_files([file.rfilename for file in files_of_repo], ref.repo_id)
            patterns, ignored = list(map(glob.escape, chosen)), []
        return Path(snapshot_download(ref.repo_id, allow_patterns=patterns, ignore_patterns=ignored, **source))


def progress_bars(progress: Progress, repo_id: str) -> type[Any]:
    """Return a `tqdm` class that reports to `progress` and prints nothing."""
    from tqdm.std import tqdm  # type: ignore[import-untyped]

    class Bars(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **(options | {"file": io.StringIO(), "disable": False}))

        def display(self, *_args: Any, **_options: Any) -> bool:
            if self.total and self.desc != _TRANSFER:
                unit = "bytes" if self.unit == "B" else "files"
                progress(f"Downloading {repo_id} ({unit})", min(int(self.n), int(self.total)), int(self.total), unit)
            return True

    return Bars


def fetch_config(repo_id: str, revision: str | None) -> Path:
    """Return the config.json of a model in the Hub's cache, downloading it if needed. Raises like `fetch_from_hub`."""
    from huggingface_hub import hf_hub_download

    with _translated(repo_id, revision):
        is_offline = not _is_reachable()
        return Path(hf_hub_download(repo_id, "config.json", revision=revision, local_files_only=is_offline))


def _is_reachable() -> bool:
    """
    Return whether the Hub answers a request within a few seconds; without this, the library retries for up to 25 s.

    The request runs in a thread that may outlive this call: the lookup of a name has no time limit of its own.
    """
    from huggingface_hub import constants, get_session

    answers: list[object] = []

    def ask() -> None:
        with suppress(Exception):  # the errors of the HTTP client, which differs between versions
            _connect(constants.ENDPOINT)
            answers.append(get_session().head(constants.ENDPOINT, timeout=_CONNECT_S))

    if constants.HF_HUB_OFFLINE:
        return False
    asking = threading.Thread(target=ask, name="hub", daemon=True)
    asking.start()
    asking.join(_CONNECT_S)
    return bool(answers)


def _connect(endpoint: str) -> None:
    """Raise OSError at once without a network: the HTTP client takes a second to load its certificates first."""
    parts = urlsplit(endpoint)
    if parts.hostname is None or not {parts.scheme, "all"}.isdisjoint(getproxies()):
        return  # a proxy looks the name up
    port = parts.port or (80 if parts.scheme == "http" else 443)
    socket.create_connection((parts.hostname, port), timeout=_CONNECT_S).close()


@contextmanager
def _translated(repo_id: str, revision: str | None) -> Iterator[None]:
    try:
        yield
    except HeadraceError:
        raise
    except Exception as exc:
        # The library does not wrap the errors of its HTTP client, and the client differs between versions.
        raise translate(exc, repo_id, revision) from exc


def translate(exc: Exception, repo_id: str, revision: str | None) -> HeadraceError:
    from huggingface_hub import constants, errors

    missing = (
        "{repo} is not (completely) in the cache {cache}, and HF_HUB_OFFLINE is set. Unset it to download the model."
        if constants.HF_HUB_OFFLINE
        else "{repo} is not in the cache {cache}, and the Hub cannot be reached at {endpoint}. Check the network (or "
        "HF_ENDPOINT and HTTPS_PROXY), or give a local folder; `headrace models ls` lists what is stored."
    )
    messages: tuple[tuple[type[Exception], str], ...] = (  # most specific first
        (errors.GatedRepoError, _GATED),
        (errors.RepositoryNotFoundError, _NO_MODEL),
        (errors.RevisionNotFoundError, "{repo} has no branch, tag or commit {revision!r}."),
        (errors.LocalEntryNotFoundError, missing),
        (errors.OfflineModeIsEnabled, missing),
        (errors.EntryNotFoundError, "{repo} has no such file in revision {revision!r}."),
        (errors.HFValidationError, "{repo!r} is not a valid Hub model name: {exc}"),
        (errors.HfHubHTTPError, "The Hub refused access to {repo}: {exc}"),
        (OSError, "{repo} could not be downloaded or stored: {exc}. Check network and disk."),
        (Exception, "{repo} could not be downloaded from the Hub: {kind}: {exc}"),
    )
    message = next(text for kind, text in messages if isinstance(exc, kind))
    facts = {"repo": repo_id, "revision": revision or "main", "exc": exc, "kind": type(exc).__name__}
    places = {"cache": constants.HF_HUB_CACHE, "endpoint": constants.ENDPOINT}
    return ModelNotFound(message.format(**facts, **places), model=repo_id)


def code_folder() -> Path:
    """Return the folder in the Hub's cache for what sandboxed code downloads, which no other process reads."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / "headrace-code"


def cached_models() -> "list[CachedRepoInfo]":
    cache = _scan()
    repos = [] if cache is None else [repo for repo in cache.repos if repo.repo_type == "model"]
    return sorted(repos, key=lambda repo: repo.repo_id)


def remove_from_cache(repo_id: str) -> int | None:
    """Delete all revisions of a model from the cache; return the bytes freed, or None if it is not cached."""
    cache = _scan()
    repo = next((repo for repo in cached_models() if repo.repo_id == repo_id), None)
    if cache is None or repo is None:
        return None
    strategy = cache.delete_revisions(*(revision.commit_hash for revision in repo.revisions))
    strategy.execute()
    return strategy.expected_freed_size


def _scan() -> "HFCacheInfo | None":
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir()
    except CacheNotFound:
        return None
