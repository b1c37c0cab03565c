"""Pointwise work that is computed together: pooling, concatenation, horizontal fusion."""
