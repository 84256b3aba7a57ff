"""
The control plane: the AWS operations that write down what is asked, and the reconciler that makes it true.

Handlers (`*_api.py`) only write to the store; `reconciler` only reads there what to do. `deployment` and `plan` decide,
and are pure.
"""
