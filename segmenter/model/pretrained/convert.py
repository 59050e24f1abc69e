"""Old spelling of `segmenter convert-weights`: `python -m segmenter.model.pretrained.convert`."""

import sys

from segmenter.base.old_calls import hand_on

if __name__ == "__main__":
    sys.exit(hand_on("convert-weights"))
