"""A branch on a tensor: fork, trace an arm, join, merge, and whether that is legal."""
