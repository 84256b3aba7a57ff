"""`headrace serve --models`: many models by name behind one address, on a model host."""
