"""Property tests for rules (a later issue)."""
