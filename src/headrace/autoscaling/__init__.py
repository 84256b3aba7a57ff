"""Application Auto Scaling: scalable targets, policies, schedules and activities, and the loop that acts on them."""
