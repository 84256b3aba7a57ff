"""The types of metrics."""

import enum


class MetricTypes(enum.Enum):
    """Counters are added up, gauges keep the last value, and histograms count values."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
