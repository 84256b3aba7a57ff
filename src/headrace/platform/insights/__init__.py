"""CloudWatch Logs Insights: the language of queries, its evaluation over log lines, and the process that runs it."""
