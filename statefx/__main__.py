"""``python -m statefx``."""

import sys

from statefx.command import main

if __name__ == "__main__":
    sys.exit(main())
