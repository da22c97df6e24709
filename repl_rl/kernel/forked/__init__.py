"""Kernels forked from a warm server, on private channels: the default backend."""
