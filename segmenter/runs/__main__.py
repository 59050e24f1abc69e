"""Old spelling of `segmenter runs`: `python -m segmenter.runs`."""

import sys

from segmenter.base.old_calls import hand_on

if __name__ == "__main__":
    sys.exit(hand_on("runs"))
