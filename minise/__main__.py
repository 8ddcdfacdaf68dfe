"""`python -m minise`, the same as `minise`."""

import sys

from minise.cli import main

if __name__ == "__main__":
    sys.exit(main())
