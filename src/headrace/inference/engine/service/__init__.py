"""The engine as an asynchronous service: requests in, chunks out."""
