"""CloudWatch: measurements that are put and read, and alarms. Who evaluates alarms is `autoscaling`, not here."""
