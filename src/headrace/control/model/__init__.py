"""Resources of the control plane as values: what the store keeps of them, and what follows from that. Pure."""
