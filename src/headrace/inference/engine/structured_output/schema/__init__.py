"""A client's JSON schema, turned into one that is enforced token by token."""
