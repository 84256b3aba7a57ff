"""
The limits of an access key: what it may use, and how much of it in a minute. Pure: the caller passes the time in.

Rates are counted in a sliding minute: the amounts of this minute of the clock, and the part of those of the minute
before that is less than 60 seconds ago, as if they had come evenly.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Annotated, Final

import msgspec

MINUTE_S: Final = 60
MAX_PATTERNS: Final = 100
_MAX_NAME_CHARACTERS: Final = 1024
"""Longer names match no pattern: the name of a model in a body may have any length."""
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.:/@+*?-]{1,256}")
_MAX_STARS: Final = 8
"""Matching takes longer with each star."""

INVOKE: Final = "sagemaker:InvokeEndpoint"
ACTION_SETS: Final[Mapping[str, Sequence[str]]] = {
    "invoke": (f"{INVOKE}*",),
    "read": ("*:Describe*", "*:Get*", "*:List*", "*:Head*", "*:Query*", "*:Filter*", "*:StartQuery"),
}
"""Short names for actions, which users would write as several patterns."""

_Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_Patterns = Annotated[tuple[_Pattern, ...], msgspec.Meta(max_length=MAX_PATTERNS)]
_Amount = Annotated[int, msgspec.Meta(ge=1, le=10**12)]


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The limits of a key; by default it may use everything, as much as it wants."""

    models: _Patterns = ()
    """Names of endpoints, inference components or models that it may use, with `*` and `?`; empty: all."""
    actions: _Patterns = ()
    """
    Actions that it may use: `invoke`, `read`, or patterns of IAM's names such as `s3:Get*`.

    Empty: all of them, or only `invoke` for a key with `models`.
    """
    requests_per_minute: _Amount | None = None
    tokens_per_minute: _Amount | None = None
    """Tokens of prompts and answers together."""
    max_in_flight: _Amount | None = None
    """Requests in flight at the same time."""

    def __post_init__(self) -> None:
        for pattern in (*self.models, *self.actions):
            if not _PATTERN.fullmatch(pattern) or pattern.count("*") > _MAX_STARS:
                raise ValueError(
                    f"The pattern is {pattern!r}; expected at most 256 letters, digits, `_.:/@+-`, `?` and at most "
                    f"{_MAX_STARS} `*`."
                )
        for action in self.actions:
            if action not in ACTION_SETS and action != "*" and ":" not in action:
                raise ValueError(
                    f"The action is {action!r}; expected {', '.join(ACTION_SETS)}, or a service and an operation such "
                    "as sagemaker:InvokeEndpoint or s3:*."
                )

    @property
    def is_empty(self) -> bool:
        return self == NO_LIMITS

    @property
    def has_rates(self) -> bool:
        return any(limit is not None for limit in (*self.rates(), self.max_in_flight))

    def rates(self) -> tuple[int | None, int | None]:
        """Return the limits of requests and tokens in a minute."""
        return self.requests_per_minute, self.tokens_per_minute

    def allows_model(self, *names: str) -> bool:
        """Return whether one of the names of a model is allowed."""
        return not self.models or any(_matches(name, self.models) for name in names if name)

    def allows_action(self, action: str) -> bool:
        """Return whether an action is allowed, by IAM's name for it."""
        actions = self.actions or (("invoke",) if self.models else ())
        patterns = [pattern for name in actions for pattern in ACTION_SETS.get(name, (name,))]
        return not actions or _matches(action, patterns)

    def describe(self) -> str:
        """Return the limits in a line for people; empty if there are none."""
        amounts = {
            "requests/min": self.requests_per_minute,
            "tokens/min": self.tokens_per_minute,
            "in flight": self.max_in_flight,
        }
        parts = [f"{name} {', '.join(found)}" for name in ("models", "actions") if (found := getattr(self, name))]
        return "; ".join([*parts, *(f"{amount} {unit}" for unit, amount in amounts.items() if amount is not None)])


NO_LIMITS: Final = KeyLimits()


def denied(key: str, action: str, resource: str) -> str:
    """Return the message for an action that the limits of a key do not allow, which begins as AWS's."""
    return (
        f"User: {key} is not authorized to perform: {action} on resource: {resource} because the limits of this "
        f"access key do not allow it. `headrace keys limit {key}` changes them."
    )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return len(name) <= _MAX_NAME_CHARACTERS and any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class MinuteCount:
    """An amount in the minute of the clock that runs, and in the one before it."""

    now: int
    before: int

    def used(self, elapsed_s: float) -> float:
        """Return the amount in the last 60 seconds; `elapsed_s` of the minute have passed."""
        return max(0, self.now) + max(0, self.before) * (MINUTE_S - elapsed_s) / MINUTE_S

    def wait_s(self, limit: int, amount: int, elapsed_s: float) -> float:
        """Return the seconds until `amount` more is within the limit, if nothing else is counted until then."""
        now, before, room = max(0, self.now), max(0, self.before), limit - amount
        if now + before * (MINUTE_S - elapsed_s) / MINUTE_S <= room:
            return 0.0
        if now <= room:
            return max(0.0, MINUTE_S * (1 - (room - now) / before) - elapsed_s)
        return MINUTE_S - elapsed_s + MINUTE_S * (1 - max(0, room) / now)

    def reset_s(self, elapsed_s: float) -> float:
        """Return the seconds until nothing counts any more."""
        if self.now > 0:
            return 2 * MINUTE_S - elapsed_s
        return MINUTE_S - elapsed_s if self.before > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """A limit of requests or of tokens in a minute, and what is left of it."""

    unit: str
    """`requests` or `tokens`."""
    limit: int
    remaining: int
    reset_s: float


def openai_headers(allowances: Sequence[Allowance]) -> Iterator[tuple[str, str]]:
    """Yield OpenAI's headers. Source: OpenAI guide, "Rate limits in headers"."""
    for allowance in allowances:
        yield f"x-ratelimit-limit-{allowance.unit}", str(allowance.limit)
        yield f"x-ratelimit-remaining-{allowance.unit}", str(allowance.remaining)
        yield f"x-ratelimit-reset-{allowance.unit}", _duration(allowance.reset_s)


def anthropic_headers(allowances: Sequence[Allowance], now_s: float) -> Iterator[tuple[str, str]]:
    """Yield Anthropic's headers. Source: Claude API reference, "Rate limits", response headers."""
    for allowance in allowances:
        reset = datetime.fromtimestamp(math.ceil(now_s + allowance.reset_s), UTC)
        yield f"anthropic-ratelimit-{allowance.unit}-limit", str(allowance.limit)
        yield f"anthropic-ratelimit-{allowance.unit}-remaining", str(allowance.remaining)
        yield f"anthropic-ratelimit-{allowance.unit}-reset", reset.strftime("%Y-%m-%dT%H:%M:%SZ")


def _duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it: `1m12s`, `6s`, `120ms`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
