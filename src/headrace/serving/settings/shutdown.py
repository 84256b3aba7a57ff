"""Time limits of an orderly shutdown, for the model server and the platform. Pure."""

from headrace.core.errors import SettingsError
from headrace.serving.settings.rules import is_loopback

DEFAULT_SHUTDOWN_DELAY_S = 5.0
"""Kubernetes removes a terminating pod from its services within a second or two; load balancers poll less often."""


def resolve_shutdown_delay(delay_s: float | None, *, grace_s: float, host: str) -> float:
    """Return the seconds for which a server keeps serving after it was told to stop."""
    if delay_s is None:
        delay_s = 0.0 if is_loopback(host) else DEFAULT_SHUTDOWN_DELAY_S
    return min(delay_s, grace_s)


def check_shutdown(delay_s: float | None, *, grace_s: float) -> None:
    """Check that the delay fits into the grace period. Raises `SettingsError`: the delay is longer."""
    if delay_s is not None and delay_s > grace_s:
        raise SettingsError(
            f"shutdown_delay_s is {delay_s:g} and shutdown_grace_s is {grace_s:g}; expected at most as much, as the "
            "delay is part of the grace period. Lower the first or raise the second.",
            name="shutdown_delay_s",
        )
