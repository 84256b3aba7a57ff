"""A runner in torch: the networks of `ModelSpec`, with Triton kernels on CUDA."""
