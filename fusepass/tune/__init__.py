"""Candidates for one fused operation, how they are timed, the table of choices (to come)."""
