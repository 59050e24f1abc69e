"""Old spelling of `segmenter check` and others: `python -m datasets check`."""

import sys

from segmenter.base.errors import end_at_once_on_ctrl_c

if __name__ == "__main__":
    end_at_once_on_ctrl_c()  # before the imports that take time

from .commands import main

if __name__ == "__main__":
    sys.exit(main(["datasets", *sys.argv[1:]]))
