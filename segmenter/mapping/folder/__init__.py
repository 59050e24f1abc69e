"""Contents of an output folder: journal, locks, unfinished maps."""
