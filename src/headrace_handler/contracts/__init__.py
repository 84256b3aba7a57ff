"""The contracts that users' code is written for, one module each: how code is loaded and called, and how it answers."""
