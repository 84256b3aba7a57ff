"""The OpenAPI description of routes, with schemas from the structs that parse their bodies."""
