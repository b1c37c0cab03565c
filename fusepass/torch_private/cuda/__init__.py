"""NVRTC, TMA descriptors, and launches of kernels of ours."""
