"""Benchmarks of the daemon beside a bare call through the SDK: `python -m tests.bench`."""
