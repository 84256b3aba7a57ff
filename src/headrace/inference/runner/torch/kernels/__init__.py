"""Triton kernels for CUDA; each module holds the host code that launches its kernels."""
