"""Command `segmenter gpu`: questions to a GPU server, answered by a module each."""
