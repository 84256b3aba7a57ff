"""
Stand-in for AWS's `transformers_neuronx` without Neuron devices: the same folders, by transformers on the CPU.

It needs torch and transformers. Source of names and of the format of split folders: aws-neuron/transformers-neuronx.
"""
