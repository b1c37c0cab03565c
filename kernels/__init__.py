"""Fused kernels: one file per kernel, each with its reference, launch choice and torch.library op.

Imported as ``fusepass.kernels``. This file holds nothing else on purpose: from the root of a
checkout other libraries can find the folder under its bare name, and importing it must do nothing.
"""
