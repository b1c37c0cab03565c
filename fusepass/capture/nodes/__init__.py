"""Define the nodes that capture puts into a graph."""
