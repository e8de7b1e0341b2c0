"""Run with ``python -m paceline.training``."""

import sys

from paceline.training.command import main

if __name__ == "__main__":
    sys.exit(main())
