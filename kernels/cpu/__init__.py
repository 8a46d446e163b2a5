"""Kernels for CPUs: C++ in `source`, built on the machine that runs it, and called through `library.CpuKernels`."""
