"""HTTP around one engine: what SageMaker calls a container."""
