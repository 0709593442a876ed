"""Measurements. `python -m tests.benchmarks` (make bench) runs them all and writes reports/benchmarks.md."""
