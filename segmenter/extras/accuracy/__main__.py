"""Old spelling of `segmenter accuracy`: `python -m segmenter.extras.accuracy`."""

import sys

from segmenter.base.old_calls import hand_on

if __name__ == "__main__":
    sys.exit(hand_on("accuracy"))
