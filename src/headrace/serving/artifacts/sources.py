"""Sources of a model's files, and the objects among them that a worker may read."""

from dataclasses import dataclass, field


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedObject:
    """One object that a worker may read."""

    key: str
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
