"""One module per question; each prints one JSON line and runs with `python -m benchmarks.NAME`."""
