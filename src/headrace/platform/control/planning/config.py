"""The configuration of the reconciler, and what is fixed during one of its passes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.serving.wire.aws.scope import AwsScope

CLOCK_JUMP_S: Final = 1.0
"""Smallest change of the wall clock that counts as a jump; time servers slew smaller ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerConfig:
    """Time limits and bounds of the reconciler; times are seconds."""

    drain_s: float = 1.0
    """Minimum time between the end of a worker's traffic and SIGTERM: every gateway must have read the route."""
    max_drain_s: float = 480.0
    """Maximum of that time while requests are in flight: the gateway's limit for a stream."""
    stop_grace_s: float = 30.0
    """Time between SIGTERM and SIGKILL, for in-flight requests; the same as SageMaker's."""
    unhealthy_s: float = 30.0
    """A worker whose `/ping` fails for this long is replaced."""
    num_allowed_failures: int = 1
    """Worker failures tolerated before the deployment fails."""
    backoff_s: float = 1.0
    """Delay before the second replacement of a crashed worker; doubles with each crash. The first starts at once."""
    max_backoff_s: float = 60.0
    crash_window_s: float = 600.0
    """Age up to which crashes count."""
    slack_s: float = 60.0
    """Added to the time that a transient state may take by its own settings."""
    num_kept_logs: int = 3
    """Failed workers of an endpoint whose logs are kept."""
    awake_since_s: float = 0.0
    """Start of this platform process, or the last jump of its clock: time before it does not count for deadlines."""

    @property
    def stop_bound_s(self) -> float:
        """Time after which a worker that was told to stop has ended, or cannot be reached."""
        return self.drain_s + self.stop_grace_s + self.slack_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PassContext:
    """The values that are fixed during one pass of the reconciler."""

    aws_scope: AwsScope
    now_s: float
    """Seconds since 1970."""
    config: ReconcilerConfig
    new_id: Callable[[], str]
    """Generates the id of an instance."""

    def waited_s(self, since_s: float) -> float:
        """Return the time waited since `since_s`; a time in the future dates from before the clock was set back."""
        awake_since_s = self.config.awake_since_s
        return self.now_s - (awake_since_s if since_s > self.now_s + CLOCK_JUMP_S else max(since_s, awake_since_s))
