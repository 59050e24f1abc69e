"""Tell what a GPU server does, `segmenter gpu`: a module for each section, each run by itself."""
