"""Program version, recorded in runs, maps and checkpoints."""

__version__ = "0.1.0"
