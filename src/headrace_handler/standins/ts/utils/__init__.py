"""Functions that handlers use to label predictions and to report failures."""
