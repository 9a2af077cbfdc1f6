"""Cameras, two views, robust fitting with a reason for every outcome, and the verdict on a pair."""
