"""The settings of the model server and of the platform: fields, sources, and the names that other servers use."""
