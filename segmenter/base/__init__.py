"""Base package that all others use: errors, files, locks, threads, terminal output."""
