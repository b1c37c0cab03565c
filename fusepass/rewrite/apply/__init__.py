"""Applying rules: search, choose among overlaps, splice, verify."""
