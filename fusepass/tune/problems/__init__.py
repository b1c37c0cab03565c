"""Fused operations as the tuner sees them, and random inputs for them."""
