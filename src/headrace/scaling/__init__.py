"""
What capacity something should have: alarms, policies, schedules and decisions, as CloudWatch and Application Auto
Scaling define them, and a simulation of them. Pure: time is an argument, nothing is read or written here.
"""
