"""Python numbers read from tensors: recorded, tested, and replaced by 0-d tensors."""
