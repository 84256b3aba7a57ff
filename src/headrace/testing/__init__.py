"""For tests: a backend without a model, a runner without weights, a launcher without processes, a local platform."""
