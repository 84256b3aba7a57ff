"""Headrace turns a language model on disk into a streaming, SageMaker-compatible endpoint."""

__version__ = "0.1.0"
