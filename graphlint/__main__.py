"""Lets `python -m graphlint` do what the `graphlint` command does; imports the command line only."""

import sys

from graphlint.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
