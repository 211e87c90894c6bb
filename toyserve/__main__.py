"""``python -m toyserve`` is ``toyserve``."""

import sys

from toyserve.cli import main

if __name__ == "__main__":
    sys.exit(main())
