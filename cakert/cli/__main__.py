"""``python -m cakert.cli``: the command where the script `cakert` is not on PATH."""

import sys

from cakert.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
