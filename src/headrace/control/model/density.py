"""
The ratio of a component's copies to the instances of its variant, as it was declared. Pure.

While a variant that hosts components is scaled by Application Auto Scaling, the copies of its components follow its
instances by this ratio: an instance without copies would take no load. See `autoscaling.followers`.
"""

from dataclasses import dataclass

import msgspec

from headrace.state.records import Json

_MEMBER = "density"
"""Of a component's `spec`; absent unless the component follows its variant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Density:
    """A number of copies that was declared for a number of instances; both are above 0."""

    copies: int
    instances: int

    def copies_on(self, instances: int) -> int:
        """Return the copies for a number of instances, rounded up."""
        return -(-self.copies * instances // self.instances)


def read_density(spec: Json) -> Density | None:
    """
    Read the ratio that a component follows, if it follows its variant.

    Raises:
        ValueError: the record has something else in its place.
    """
    raw = spec.get(_MEMBER)
    if raw is None:
        return None
    density = msgspec.convert(raw, Density)
    if density.copies < 1 or density.instances < 1:
        raise ValueError(f"density is {raw}; expected at least one copy and one instance.")
    return density


def with_density(spec: Json, density: Density | None) -> Json:
    """Return a component's spec with another ratio, or with none."""
    kept = {name: value for name, value in spec.items() if name != _MEMBER}
    return kept if density is None else {**kept, _MEMBER: msgspec.to_builtins(density)}
