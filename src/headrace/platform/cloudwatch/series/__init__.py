"""Storage of datapoints, in memory and in a file."""
