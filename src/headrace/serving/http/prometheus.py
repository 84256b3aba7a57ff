"""Metrics in Prometheus' text format; `prometheus_client` takes 50 ms to import, so servers import this at a scrape."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prometheus_client.samples import Sample


class _Given(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def metrics_page(families: Iterable[Metric]) -> bytes:
    return generate_latest(_Given(families))


def merge_families(collected: Iterable[Metric]) -> list[Metric]:
    """
    Return each metric once, with the samples of all models or gateways: Prometheus refuses one that is declared twice.

    Samples with the same labels, such as those of versions of one model, are added up; gauges too.
    """
    by_name: dict[str, Metric] = {}
    for family in collected:
        known = by_name.setdefault(family.name, family)
        if known is not family and known.type == family.type:
            sums: dict[tuple[str, frozenset[tuple[str, str]]], Sample] = {}
            for sample in (*known.samples, *family.samples):
                key = (sample.name, frozenset(sample.labels.items()))
                value = sample.value + (sums[key].value if key in sums else 0)
                sums[key] = sums.get(key, sample)._replace(value=value)
            known.samples = list(sums.values())
    return list(by_name.values())
