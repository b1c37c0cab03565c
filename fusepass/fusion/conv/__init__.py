"""Convolutions with what is done to their channels."""
