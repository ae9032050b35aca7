"""Rewrites of a functional ATen graph that let libraries do more at once, or do it faster."""
