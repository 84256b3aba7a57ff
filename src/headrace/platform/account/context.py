"""The part of a call's context that the account's handlers need."""

from dataclasses import dataclass, field

from headrace.platform.account.deliveries import Deliverer
from headrace.platform.account.image_store import NO_IMAGES, ImageStore
from headrace.platform.cloudwatch.api.context import CloudWatchCall


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountCall(CloudWatchCall):
    url: str = "http://127.0.0.1"
    """The platform's address, for links in messages."""
    deliverer: Deliverer = field(default_factory=Deliverer)
    images: ImageStore = NO_IMAGES
