"""HTTP around a model's own code: the state that routes share, the relay to children, the application and its life."""
