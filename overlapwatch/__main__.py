"""`python -m overlapwatch`: the command line."""

import sys

from overlapwatch.commands import main

if __name__ == "__main__":
    sys.exit(main())
