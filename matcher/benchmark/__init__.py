"""Time and memory of methods and of published peers, side by side in one run."""
