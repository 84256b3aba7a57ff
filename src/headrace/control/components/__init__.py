"""
Inference components: several models behind one endpoint, as copies on the instances of its variants.

A component is deployed as an endpoint of one variant is (`deployment`, `plan`), so that updates, rollbacks and crashes
are the same for both. What is its own: where copies are placed (`placement`), and how many instances there are
(`pool`).
"""
