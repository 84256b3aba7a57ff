"""Load generator: measures a served model from the outside, as its clients see it."""
