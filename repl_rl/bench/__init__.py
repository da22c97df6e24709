"""Measurements that stand in BENCHMARKS.md, each a command."""
