"""A folder for the caches of a tester."""

from __future__ import annotations

import shutil
import tempfile
import weakref


class Scratch:
    """A temporary folder that is deleted with the object."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="statefx-tester-")
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
