"""Sources of a model's files, and the objects among them that a worker may read."""

from dataclasses import dataclass, field

from headrace.serving.artifacts.fetch_bounds import FetchFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSource:
    """A source of model files."""

    uri: str
    """`s3://bucket/key`, an `http(s)://` URL, or, without `strict`, a local path."""
    is_prefix: bool = False
    """The URI is a prefix, and all objects below it belong to the model (S3Prefix)."""
    is_archive: bool = True
    """The object is an archive to unpack (CompressionType Gzip)."""
    channel: str | None = None
    """Channel of AdditionalModelDataSources, in a container `/opt/ml/additional-model-data-sources/<channel>`."""


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """The bucket and key of an object, or of a prefix."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def parse_location(uri: str) -> ObjectLocation:
    """Parse `s3://bucket/key`; raises `FetchFailed` for another form."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not uri.startswith("s3://") or not bucket:
        raise FetchFailed(f"{uri!r} is not an address in object storage; expected s3://BUCKET/KEY.")
    return ObjectLocation(bucket, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedObject:
    """One object that a worker may read, in the version that the platform found."""

    location: ObjectLocation
    etag: str
    num_bytes: int
    url: str = field(repr=False)
    """A URL that is signed for this object, for a limited time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectGrant:
    """The objects at a location that a worker may read; it has no keys of the object storage."""

    uri: str
    """`s3://bucket/key`; of a prefix, with a slash at the end unless it is the whole bucket."""
    is_prefix: bool = False
    endpoint: str = ""
    """URL of the object storage."""
    objects: tuple[GrantedObject, ...] = ()
    error: str = ""
    """The reason why nothing could be granted."""
