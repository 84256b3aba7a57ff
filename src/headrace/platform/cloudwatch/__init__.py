"""CloudWatch: metrics, their statistics and series, metric math, alarms, and the API over them."""
