"""Where datapoints are kept: in memory, and in a file."""
