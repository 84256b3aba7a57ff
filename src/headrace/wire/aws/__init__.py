"""AWS's protocols on the server's side, driven by botocore's service models: bytes to calls, results to bytes."""
