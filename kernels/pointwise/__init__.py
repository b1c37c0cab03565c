"""Pointwise work and pooling in one launch."""
