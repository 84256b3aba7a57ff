"""Many models behind one address: a worker process for each loaded model, and the decision which ones stay loaded."""
