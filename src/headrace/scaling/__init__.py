"""
What capacity something should have: alarms, policies, schedules, decisions, and a simulation of them.

As CloudWatch and Application Auto Scaling define them. Pure: time is an argument, nothing is read or written here.
"""
