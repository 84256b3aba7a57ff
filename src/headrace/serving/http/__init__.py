"""HTTP/1.1 for servers and clients: listener, protocol, bodies, responses, shared page files, a client for workers."""
