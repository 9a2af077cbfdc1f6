"""Measure methods, ours, others' and any function, on the same pairs by one set of rules."""
