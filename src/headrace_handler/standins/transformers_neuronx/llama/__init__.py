"""Stand-in for `transformers_neuronx.llama`."""
