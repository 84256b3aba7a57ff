"""Open the prefix cache on disk for a loaded runner: a private folder for each model and format."""

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.core.errors import SettingsError
from headrace.core.sizes import format_size
from headrace.core.telemetry import get_logger
from headrace.inference.engine.config import EngineConfig
from headrace.inference.engine.prefix_store.block_file import HEADER_BYTES, BlockFolder
from headrace.inference.engine.prefix_store.store import FileStore

if TYPE_CHECKING:
    from headrace.inference.engine.core.stored_blocks import Kind
    from headrace.inference.engine.prefix_store.block_file import Row


class CachingRunner(Protocol):
    """A runner whose KV cache can be read and written from outside."""

    def cache_identity(self) -> bytes: ...

    def cache_rows(self) -> "dict[Kind, Row]": ...


def open_prefix_store(config: EngineConfig, runner: CachingRunner) -> FileStore | None:
    """
    Return the store of a configuration, not started; None without one, or if the disk has no room for its folder.

    Raises:
        SettingsError: The folder cannot be used, is not private, or is too small.
    """
    if config.prefix_cache_dir is None:
        return None
    if not config.enable_prefix_caching:
        raise SettingsError(
            "prefix_cache_dir is set, but enable_prefix_caching is false. Remove either of them.",
            name="prefix_cache_dir",
        )
    identity, rows = runner.cache_identity(), runner.cache_rows()
    least_bytes = sum(HEADER_BYTES + row.shape[1] for row in rows.values())
    if config.prefix_cache_disk_bytes < least_bytes:
        raise SettingsError(
            f"prefix_cache_disk_bytes is {config.prefix_cache_disk_bytes}; expected at least {least_bytes:,}, "
            f"a block of this model ({format_size(least_bytes)}).",
            name="prefix_cache_disk_bytes",
        )
    folder = config.prefix_cache_dir.expanduser().absolute() / identity.hex()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(folder)
    except (PermissionError, FileExistsError, NotADirectoryError) as exc:
        raise SettingsError(
            f"prefix_cache_dir is {config.prefix_cache_dir}, where no folder can be used: {exc.strerror}. "
            "Name a folder that this user may write.",
            name="prefix_cache_dir",
        ) from exc
    except OSError as exc:  # a full disk must not stop a server that would run without it
        get_logger().warning("prefix_store.off", folder=str(folder), reason=str(exc))
        return None
    store = FileStore(BlockFolder(folder, identity), rows, max_bytes=config.prefix_cache_disk_bytes)
    get_logger().info("prefix_store.opened", folder=str(folder), files=store.num_files)
    return store


def _check_private(folder: Path) -> None:
    """Raise `SettingsError` if other users may read or write a folder: KV reveals prompts, and decides answers."""
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise SettingsError(
            f"prefix_cache_dir has {folder}, which other users may read or write; expected a folder of this user with "
            "mode 0700. Remove it, or name another folder.",
            name="prefix_cache_dir",
        )
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(13, "Permission denied")
