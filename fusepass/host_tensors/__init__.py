"""Tensors made on the CPU and copied to a device: made there, or once."""
