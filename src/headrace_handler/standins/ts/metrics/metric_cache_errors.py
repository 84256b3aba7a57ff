"""Errors of the metrics of handlers."""


class MetricsCacheTypeError(TypeError):
    """An argument has another type than expected."""


class MetricsCacheValueError(ValueError):
    """An argument has a value that is not allowed."""


class MetricsCacheKeyError(KeyError):
    """The metric does not exist, or the file of metrics lacks a key."""
