"""Old spelling of `segmenter devices`: `python -m segmenter.devices`."""

import sys

from segmenter.base.old_calls import hand_on

if __name__ == "__main__":
    sys.exit(hand_on("devices"))
