"""Command `segmenter gpu`: laws and speed of a GPU server; a module for each section."""
