"""See what a matcher sees: pictures of it, and a page on which every stage answers a chosen point."""
