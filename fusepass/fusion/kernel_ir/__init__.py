"""What a fused kernel computes, as plain values: epilogues, pointwise programs, norms."""
