"""Pictures of what a matcher sees."""
