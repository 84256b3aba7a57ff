"""Hugging Face's Inference Toolkit for SageMaker: `/invocations` as a pipeline of transformers answers it."""
