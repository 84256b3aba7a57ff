"""Templates: text, sections and intrinsic functions. Pure."""
