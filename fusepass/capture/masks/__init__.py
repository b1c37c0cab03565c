"""Capture selections ``x[mask]``, and lower them to tensors of known size."""
