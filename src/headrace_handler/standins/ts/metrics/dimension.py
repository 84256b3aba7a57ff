"""Dimensions of metrics."""

from dataclasses import dataclass


@dataclass
class Dimension:
    """A dimension of a metric and its value."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}:{self.value}"

    def to_dict(self) -> dict[str, str]:
        return {"Name": self.name, "Value": self.value}
