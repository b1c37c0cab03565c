"""Capture one branch on a tensor: fork, trace both arms, join, merge, check."""
