"""`python -m cakert`: the command of the same name."""

from __future__ import annotations

import sys

from cakert.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
