"""Load on a running server and what it measures: `scripts/benchmark.py` puts the parts together."""
