"""``python -m statefx``, which does what the command ``statefx`` does."""

import sys

from statefx.command import main

if __name__ == "__main__":
    sys.exit(main())
