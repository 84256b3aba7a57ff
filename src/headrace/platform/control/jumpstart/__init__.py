"""JumpStart: the catalogue of model ids, and the manifests, specs and hub documents that SDKs read."""
