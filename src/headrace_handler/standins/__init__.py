"""
Packages with the names that users' code imports, such as `djl_python` and `ts`.

This folder is the last entry of the child's `sys.path`, so that an installed package of the same name is used instead.
Modules import their neighbours relatively, and packages beyond the standard library (numpy, torch, PIL) where they use
them.
"""
