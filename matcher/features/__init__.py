"""Keypoint front ends, one file each."""
