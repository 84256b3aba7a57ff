"""
Signatures of the chunks of a body (`STREAMING-AWS4-HMAC-SHA256-PAYLOAD`, with or without a signed trailer). Pure.

The signature of the head covers no byte of such a body. Each chunk is signed with the signature before it, so that
chunks can be neither changed nor dropped, repeated or exchanged.
Source: Amazon S3 API reference, "Signature Calculations for the Authorization Header: Transferring Payload in Multiple
Chunks", and "... (Chunked Upload) ... Including Trailing Headers".
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

TRAILER_SIGNATURE = "x-amz-trailer-signature"
_ALGORITHM = "AWS4-HMAC-SHA256"
_EMPTY_DIGEST = hashlib.sha256().hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkKey:
    """The key that signs the chunks of one body."""

    key: bytes = field(repr=False)
    timestamp: str
    scope: str
    seed: str
    """The signature of the head."""


class ChunkVerifier:
    """Verifies the signatures of chunks in their order."""

    def __init__(self, key: ChunkKey) -> None:
        self._key = key
        self._previous = key.seed
        self._claimed = ""
        self._digest = hashlib.sha256()

    def begin(self, signature: str) -> None:
        """Begin a chunk with the signature that it claims."""
        self._claimed, self._digest = signature, hashlib.sha256()

    def update(self, content: bytes | bytearray) -> None:
        self._digest.update(content)

    def is_right(self) -> bool:
        """Return whether the chunk that ends here has the right signature."""
        return self._is_signed("PAYLOAD", _EMPTY_DIGEST, self._digest.hexdigest(), claimed=self._claimed)

    def is_trailer_right(self, trailers: Mapping[str, str]) -> bool:
        """Return whether the trailer has the right signature, which is the last of its lines."""
        text = "".join(f"{name}:{value}\n" for name, value in sorted(trailers.items()) if name != TRAILER_SIGNATURE)
        digest = hashlib.sha256(text.encode("latin-1", errors="replace")).hexdigest()
        return self._is_signed("TRAILER", digest, claimed=trailers.get(TRAILER_SIGNATURE, ""))

    def _is_signed(self, kind: str, *digests: str, claimed: str) -> bool:
        key = self._key
        text = "\n".join((f"{_ALGORITHM}-{kind}", key.timestamp, key.scope, self._previous, *digests))
        right = hmac.new(key.key, text.encode("latin-1", errors="replace"), hashlib.sha256).hexdigest()
        self._previous = right
        return hmac.compare_digest(right.encode(), claimed.encode("latin-1", errors="replace"))
