"""Convolutions with an epilogue."""
