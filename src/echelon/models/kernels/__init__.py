"""Kernels for training a Transformer on a CPU: C++ compiled on the machine where it runs, called through ctypes."""
