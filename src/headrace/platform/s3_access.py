"""How an S3 server is reached: its address and keys."""

from dataclasses import dataclass

from headrace.core.errors import HeadraceError
from headrace.state.records import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """Address and keys of one S3 server."""

    endpoint_url: str
    access_key: str
    secret_key: str
    region: str

    def __repr__(self) -> str:
        return f"S3Access(endpoint_url={self.endpoint_url!r}, access_key={self.access_key!r}, secret_key='***')"

    def to_json(self) -> Json:
        """As workers get it (`cluster.launcher.WorkerSpec.s3`)."""
        return {
            "endpoint_url": self.endpoint_url,
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "region": self.region,
        }


class StorageMissing(HeadraceError):
    """There is no object storage, and there will be none until somebody does what the message says."""

    code = "storage_missing"
    http_status = 501


class StorageUnavailable(HeadraceError):
    """Object storage is starting, or has just died and comes back."""

    code = "storage_unavailable"
    http_status = 503
    retryable = True
