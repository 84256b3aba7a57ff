"""Load generator: what a served model gives to its clients, measured from outside."""
