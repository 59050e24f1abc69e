"""Command `segmenter gpu`: laws and speed of a GPU server, one module for each section."""
