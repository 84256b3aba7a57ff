"""What a metric and its datapoints are, and their statistics. Pure."""
