"""HTTP/1.1 for all servers and clients here: listener, protocol, request bodies, responses, a client for workers."""
