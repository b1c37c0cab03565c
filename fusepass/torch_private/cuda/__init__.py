"""Compile by NVRTC, make TMA descriptors, and launch kernels."""
