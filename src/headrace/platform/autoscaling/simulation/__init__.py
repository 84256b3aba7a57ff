"""A simulated fleet that runs a trace of requests under the platform's own scaling decisions. Pure."""
