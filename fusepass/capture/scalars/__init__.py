"""Capture Python numbers read from tensors: record, test, and replace them by 0-d tensors."""
