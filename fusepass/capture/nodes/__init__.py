"""What capture puts into a graph."""
