"""Start `segmenter gpu` in a clone."""

import sys

from datasets.commands.gpu.command import main
from segmenter.base.errors import run_tool

if __name__ == "__main__":
    sys.exit(run_tool(main))  # `kill` ends the section's process too
