"""One command for a GPU server, `python -m benchmarks.gpu`: a module for each section, each run by itself."""
