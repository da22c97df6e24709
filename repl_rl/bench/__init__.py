"""The measurements in BENCHMARKS.md; each is a command."""
