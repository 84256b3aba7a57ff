"""The page of metrics: requests and loads of each model, and the pages of the loaded ones with the label `model`."""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.core.allocator import read_resident_bytes
from headrace.platform.cluster.many_models.service import ManyModels
from headrace.platform.cluster.model_host.entries import LoadCounts, ModelStatus
from headrace.serving.http.prometheus import merge_families, metrics_page

_LABEL: Final = "model"
_COUNTERS: Final = (
    ("loads", "Loads of a model.", "num_loads"),
    ("load_failures", "Loads of a model that failed.", "num_failures"),
    ("unloads", "Unloads of a model.", "num_unloads"),
    ("load_seconds", "Time of all loads of a model, seconds.", "load_s"),
)
"""The name, the text and the attribute of each counter of loads."""


async def render_metrics(service: ManyModels) -> bytes:
    pages = await service.workers.pages()
    of_models = (
        _labelled(family, name) for name, page in pages.items() for family in text_string_to_metric_families(page)
    )
    loaded = {model.name: service.host.status(model.name) for model, _ in service.host.loaded}
    return metrics_page(merge_families([*own_families(loaded, service.num_requests, service.host.counts), *of_models]))


def own_families(
    loaded: Mapping[str, ModelStatus], num_requests: Mapping[tuple[str, int], int], counts: Mapping[str, LoadCounts]
) -> Iterator[Metric]:
    """Yield the metrics of the server in front of the models."""
    yield GaugeMetricFamily("headrace_loaded_models", "Models in memory.", len(loaded))
    resident_bytes = read_resident_bytes() or 0
    yield GaugeMetricFamily("headrace_router_memory_bytes", "Memory of the server in front of models.", resident_bytes)
    memory = GaugeMetricFamily("headrace_model_memory_bytes", "Measured memory of a loaded model.", labels=[_LABEL])
    for name, status in loaded.items():
        memory.add_metric([name], status.memory_bytes)
    yield memory
    text = "Requests for a model by status; 499: the client has gone."
    requests = CounterMetricFamily("headrace_model_requests", text, labels=[_LABEL, "status"])
    for (name, code), count in num_requests.items():
        requests.add_metric([name, str(code)], count)
    yield requests
    for metric, text, value in _COUNTERS:
        family = CounterMetricFamily(f"headrace_model_{metric}", text, labels=[_LABEL])
        for name, counted in counts.items():
            family.add_metric([name], getattr(counted, value))
        yield family


def _labelled(family: Metric, model: str) -> Metric:
    family.samples = [sample._replace(labels={**sample.labels, _LABEL: model}) for sample in family.samples]
    return family
