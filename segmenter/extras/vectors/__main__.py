"""Old spelling of `segmenter vectors`: `python -m segmenter.extras.vectors`."""

import sys

from segmenter.base.old_calls import hand_on

if __name__ == "__main__":
    sys.exit(hand_on("vectors"))
