"""The functions by which a handler sends parts of a response."""
