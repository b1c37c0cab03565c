"""Matching rules: patterns, the matcher, near misses."""
