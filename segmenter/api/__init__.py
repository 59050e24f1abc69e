"""Python's door to the program: what `segmenter` exports."""
