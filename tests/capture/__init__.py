"""Branch programs, and the harness that compares fusepass with eager."""
