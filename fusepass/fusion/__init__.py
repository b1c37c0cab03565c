"""Growing a region from an anchor, and writing the call of the kernel that computes it."""
