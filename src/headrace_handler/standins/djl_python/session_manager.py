"""State of sessions in files, which all worker processes of the host share."""

import logging
import os
import pickle
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_UUID = re.compile(r"[0-9a-f-]{36}")
_EXPIRATION = ".expiration_ts"
_NEW_SESSION = "NEW_SESSION"


class Session:
    """The values of a session, each in a file of its own."""

    def __init__(self, session_id: str, session_root: str, expiration_ts: float | None = None) -> None:
        self.session_id = session_id
        self.files_path = str(Path(session_root) / session_id)
        self.expiration_ts = self.get(_EXPIRATION) if expiration_ts is None else expiration_ts

    def put(self, key: str, value: Any) -> None:
        self._path(key).write_bytes(pickle.dumps(value))

    def get(self, key: str, d: Any = None) -> Any:
        """Return a value; `d` if it was never stored."""
        path = self._path(key)
        return pickle.loads(path.read_bytes()) if path.is_file() else d  # noqa: S301  # written by put

    def get_as_numpy(self, key: str, shape: Any, dtype: Any = "float32", create: bool = False) -> Any:
        """Return an array in a mapped file, so that changes to it are stored."""
        import numpy as np

        if create:
            self._path(key).write_bytes(b"")
        return np.memmap(self._path(key), dtype=dtype, mode="r+", shape=shape)

    def remove(self) -> bool:
        """Delete the session's files. Raises `ValueError`: they do not exist."""
        if not Path(self.files_path).exists():
            raise ValueError(f"session directory does not exist: {self.session_id}")
        logger.info("closing session: %s", self.session_id)
        shutil.rmtree(self.files_path)
        return True

    def _path(self, key: str) -> Path:
        return Path(self.files_path) / key.replace("/", "-")


class SessionManager:
    """
    The sessions of a model.

    Properties: `sessions_expiration` (seconds, 1200) and `sessions_path` (a folder, `/dev/shm/djl_sessions`).
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        if url := properties.get("sessions_s3url"):
            raise ValueError(
                f"sessions_s3url is {url!r}; expected none, because sessions stay on this host. Remove the property."
            )
        self.expiration = int(properties.get("sessions_expiration", 20 * 60))
        memory = Path("/dev/shm")  # noqa: S108  # as in DJL: all workers and restarts find the sessions there
        root = (memory if memory.is_dir() else Path(tempfile.gettempdir())) / "djl_sessions"
        self.sessions_path = str(properties.get("sessions_path") or root)
        Path(self.sessions_path).mkdir(mode=0o700, parents=True, exist_ok=True)
        if Path(self.sessions_path).stat().st_uid != os.getuid():
            raise ValueError(
                f"sessions_path {self.sessions_path} belongs to another user, whose pickles would run here; expected a "
                "folder of this user. Set the property sessions_path."
            )
        names = [path.name for path in Path(self.sessions_path).iterdir() if _UUID.fullmatch(path.name)]
        self.sessions = {name: Session(name, self.sessions_path) for name in names}

    def create_session(self) -> Session:
        """Create a session, and delete those that have expired."""
        now = time.time()
        for expired in [key for key, session in self.sessions.items() if (session.expiration_ts or 0) < now]:
            shutil.rmtree(self.sessions.pop(expired).files_path, ignore_errors=True)
        expires = now + self.expiration
        session = Session(str(uuid.uuid4()), self.sessions_path, expires)
        Path(session.files_path).mkdir(parents=True)
        session.put(_EXPIRATION, expires)
        self.sessions[session.session_id] = session
        return session

    def get_session(self, session_id: str | None) -> Session | None:
        """
        Return a session; None without an id, for a new session, or if it has expired.

        Raises `ValueError`: there is no such session.
        """
        if not session_id or session_id == _NEW_SESSION:
            return None
        session = self._find(session_id)
        if session.expiration_ts is not None and time.time() > session.expiration_ts:
            logger.info("Session expired: %s", session_id)
            return None
        return session

    def close_session(self, session_id: str | None) -> None:
        """Delete a session. Raises `ValueError`: there is no such session."""
        if not session_id:
            raise ValueError(f"invalid session_id: {session_id}")
        self._find(session_id).remove()
        self.sessions.pop(session_id, None)

    def _find(self, session_id: str) -> Session:
        """Return a session, also one that another worker process created since the start of this one."""
        is_known = _UUID.fullmatch(session_id) is not None and (Path(self.sessions_path) / session_id).is_dir()
        if not is_known:
            self.sessions.pop(session_id, None)
            raise ValueError(f"session not found: {session_id}")
        if session_id not in self.sessions:
            self.sessions[session_id] = Session(session_id, self.sessions_path)
        return self.sessions[session_id]
