"""`python -m sourcier`: the command line, for launchers such as torchrun."""

import sys

from sourcier.cli import main

if __name__ == "__main__":
    sys.exit(main())
