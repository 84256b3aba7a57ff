"""Hugging Face Text Generation Inference: the native API of 1.0.3 and of 3.x."""
