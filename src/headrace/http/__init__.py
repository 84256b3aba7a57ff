"""HTTP/1.1, once for all servers and clients: listener, protocol, request bodies, responses, a client."""
