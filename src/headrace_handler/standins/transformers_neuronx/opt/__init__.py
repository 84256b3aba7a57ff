"""Stand-in for `transformers_neuronx.opt`."""
