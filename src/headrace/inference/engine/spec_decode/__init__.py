"""Draft tokens: guessed from repeats, verified by the step that runs anyway."""
