"""What a stretch of a graph costs."""
