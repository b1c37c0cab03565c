"""Branch programs, and the harness that holds fusepass to what eager PyTorch does with them."""
