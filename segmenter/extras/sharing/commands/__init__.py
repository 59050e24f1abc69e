"""Commands of `python -m segmenter.runs`: each module has `HELP`, `add_arguments` and `run`."""
