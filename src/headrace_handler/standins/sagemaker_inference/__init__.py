"""Stand-in for the package of SageMaker's inference toolkit: the names that `inference.py` files import."""
