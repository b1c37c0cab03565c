"""Source text that the kernels share."""
