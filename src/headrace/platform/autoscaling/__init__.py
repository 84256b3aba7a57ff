"""
Application Auto Scaling: scalable targets, policies, schedules and activities, and the loop that acts on them.

`planning` has the decisions, which are pure, and `simulation` runs them on a trace of requests. The `api` handlers and
the `loops` above share only `records`: reads and writes of the store.
"""
