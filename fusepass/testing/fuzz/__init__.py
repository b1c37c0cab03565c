"""Random programs with branches on tensors, run in eager mode and compiled, and compared."""
