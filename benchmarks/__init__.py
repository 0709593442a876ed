"""Measurements. `python -m benchmarks` (make bench) runs them all and writes reports/benchmarks.md."""
