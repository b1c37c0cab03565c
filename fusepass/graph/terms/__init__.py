"""Graphs as terms: what each value is computed from, in few operations."""
