"""Metrics, the runner, statistics and reports."""
