"""Server side of the AWS protocols, driven by botocore's service models: parsing of calls, rendering of results."""
