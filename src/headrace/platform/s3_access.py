"""Address and keys of an S3 server."""

from dataclasses import dataclass

from headrace.core.errors import HeadraceError
from headrace.state.records import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """The address and the keys of an S3 server."""

    endpoint_url: str
    access_key: str
    secret_key: str
    region: str

    def __repr__(self) -> str:
        return f"S3Access(endpoint_url={self.endpoint_url!r}, access_key={self.access_key!r}, secret_key='***')"

    def to_json(self) -> Json:
        """Return the form that `cluster.object_source.ObjectSource` takes."""
        return {
            "endpoint_url": self.endpoint_url,
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "region": self.region,
        }


class StorageMissing(HeadraceError):
    """No object storage is installed or configured; the message says how to get one."""

    code = "storage_missing"
    http_status = 501


class StorageUnavailable(HeadraceError):
    """Object storage is starting or restarting."""

    code = "storage_unavailable"
    http_status = 503
    retryable = True
