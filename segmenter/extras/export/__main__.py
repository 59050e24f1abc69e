"""Old spelling of `segmenter export`: `python -m segmenter.extras.export`."""

import sys

from segmenter.base.old_calls import hand_on

if __name__ == "__main__":
    sys.exit(hand_on("export"))
