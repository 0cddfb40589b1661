"""Finds training code that wastes GPU memory or computes wrong gradients, and proves it."""

__version__ = "0.1.0"
