"""What is measured over time: series of statistics, as CloudWatch keeps them. A stranger to requests and workers."""
