"""Formats of quantized weights in Hugging Face folders, one file each; `registry` lists and detects them."""
