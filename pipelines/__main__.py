"""`python -m pipelines` is the command `bytelm`, for a source folder without installed scripts."""

import sys

from pipelines.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
