"""Version of the program, which runs, maps and checkpoints name."""

__version__ = "0.1.0"
