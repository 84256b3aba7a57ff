"""The context that functions with an extra parameter get: TorchServe's, which Multi Model Server has too."""

import copy
from typing import Any

from headrace_handler.contract import Headers, Item, Load

SERVER_VERSION = "1.1.11"
"""The version of Multi Model Server that the images have."""


def context_of_model(load: Load) -> Any:
    """Return the context that user code gets while it loads the model."""
    from ts.context import Context

    return Context(
        load.model_name,
        str(load.model_dir),
        dict(load.manifest),
        load.batch_size,
        load.device,
        SERVER_VERSION,
        model_yaml_config=dict(load.model_config),
    )


def context_of_item(model: Any, item: Item) -> Any:
    """Return the context of a request, whose index is always 0, with attributes that user code set on the model's."""
    from ts.context import RequestProcessor
    from ts.metrics.metrics_store import MetricsStore

    context = copy.copy(model)
    context.request_ids = {0: item.request_id}
    context.request_processor = [RequestProcessor(dict(item.headers))]
    context.metrics = MetricsStore(context.request_ids, context.model_name)
    return context


def report_metrics(context: Any) -> None:
    """Print the metrics of user code in the format of the model servers, which is parsed from the output."""
    for metric in context.metrics.store:
        print(f"[METRICS]{metric}", flush=True)


def header(headers: Headers, *names: str) -> str | None:
    """Return the first header of one of the names, in any case."""
    return next((value for name, value in headers if name.lower() in names), None)
