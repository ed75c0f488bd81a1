"""Benchmarks of the daemon beside a bare call through the provider's SDK: `python -m tests.bench`."""
