"""What the gateway must be told."""

from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Limits are SageMaker's by default (developer guide, "How containers serve requests")."""

    account: str
    """Twelve digits; part of texts and ARNs."""
    region: str
    max_body_bytes: int = 25 * MIB
    """Of one request."""
    max_answer_bytes: int = 25 * MIB
    """Of one answer that is not streamed."""
    invocation_timeout_s: float = 60.0
    """From the request to the whole answer, where it is not streamed."""
    stream_timeout_s: float = 480.0
    """From the request to the end of the stream."""
    max_in_flight: int = 4096
    """Requests in the gateway at the same time; one more is told to come again."""
    hold_timeout_s: float = 300.0
    """So long does a request wait for a replica that starts or wakes from zero; the model's own time begins then."""
    max_held: int = 1024
    """Requests that wait so for one endpoint; one more is told to come again."""
    max_held_in_all: int = 2048
    """For all endpoints together: half of what may be in flight, so that others are served meanwhile."""
    heartbeat_s: float = 15.0
    """Between two signs of life to a client that waits for an SSE stream."""
    max_buffered_bytes: int = 1024 * MIB
    """Bodies of requests that the gateway holds at the same time."""
    async_folder: Path | None = None
    """Where accepted asynchronous invocations wait. None: there are none."""
    max_async_waiting: int = 10_000
    max_async_answer_bytes: int = 256 * MIB
    """Of the input and of the answer of one asynchronous invocation, which are held in memory."""
    log_url: str = (
        "https://{region}.console.aws.amazon.com/cloudwatch/home?region={region}"
        "#logEventViewer:group=/aws/sagemaker/Endpoints/{endpoint}"
    )
    """Where a person finds the log of an endpoint; part of AWS's text for a failed model."""
