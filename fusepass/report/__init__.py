"""What was decided and why: records, text, JSON."""
