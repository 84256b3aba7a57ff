"""The resources of the control plane: their records in the store, and pure functions of these."""
