"""Capture a loop on a tensor as one node of the graph."""
