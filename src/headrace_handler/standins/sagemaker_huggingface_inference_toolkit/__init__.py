"""Stand-in for the package of SageMaker's Hugging Face images."""
