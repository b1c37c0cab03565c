"""Matrix products for Hopper: Gluon and CUDA C++."""
