"""Metrics of handlers, written as lines to the log, from which the model server reads them."""
