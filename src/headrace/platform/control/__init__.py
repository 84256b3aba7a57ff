"""
The control plane: AWS operations that write the desired state, and loops that make the observed state follow it.

`model` has the resources and their records, `planning` decides what to do; both are pure. Above them are the `api`
handlers and the `loops`, which meet only in the store.
"""
