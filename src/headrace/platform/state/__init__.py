"""The store: records of desired and observed state in SQL, shared by API handlers, reconciler and gateway."""
