"""Kernels of engined's own, a folder for each kind of device. Rank processes only; layers and attention call them.

Each has a twin in plain torch, in `layers` or `attention`, which serves where the kernel cannot be built.
"""
