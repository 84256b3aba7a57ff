"""Account, region and limits of the gateway."""

from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """The gateway's configuration. Source of the defaults: SageMaker guide, "How containers serve requests"."""

    account: str
    """Twelve digits; part of error messages and ARNs."""
    region: str
    max_body_bytes: int = 25 * MIB
    """Largest body of a request."""
    max_response_bytes: int = 25 * MIB
    """Largest response that is not streamed."""
    invocation_timeout_s: float = 60.0
    """Longest time from the request to the whole response, unless it is streamed."""
    stream_timeout_s: float = 480.0
    """Longest time from the request to the end of the stream."""
    max_in_flight: int = 4096
    """Requests in the gateway at the same time; further ones are throttled."""
    hold_timeout_s: float = 300.0
    """Longest time a request is held for a replica that starts or wakes from zero, before the model's own timeout."""
    max_held: int = 1024
    """Requests held for one endpoint; further ones are throttled."""
    max_held_in_all: int = 2048
    """Requests held for all endpoints together: half of `max_in_flight`, so that other endpoints are still served."""
    heartbeat_s: float = 15.0
    """Seconds between the SSE comments that keep the connection of a held streaming request open."""
    max_buffered_bytes: int = 1024 * MIB
    """Request bodies in memory at the same time."""
    stored_responses_bytes: int = 64 * MIB
    """Memory for stored responses of the Responses API. 0: none are stored."""
    stored_responses_age_s: float = 86400.0
    """Longest time that a response is stored."""
    async_folder: Path | None = None
    """Folder of accepted asynchronous invocations. None: they are refused."""
    max_async_waiting: int = 10_000
    max_async_response_bytes: int = 256 * MIB
    """Largest input, and largest response, of an asynchronous invocation; the input is held in memory."""
    log_url: str = (
        "https://{region}.console.aws.amazon.com/cloudwatch/home?region={region}"
        "#logEventViewer:group=/aws/sagemaker/Endpoints/{endpoint}"
    )
    """URL of an endpoint's log; part of AWS's error message for a failed model."""
