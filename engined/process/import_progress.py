"""A sign of life at each import. Every child, until it is ready: from a slow disk, imports alone may take minutes."""

import sys
from collections.abc import Callable


class ImportProgress:
    """Calls back whenever a module is looked for, and finds none itself: a finder of `sys.meta_path`."""

    def __init__(self, on_import: Callable[[], None]) -> None:
        self._on_import = on_import
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Called by the interpreter, before anything is searched or read."""
        self._on_import()

    def close(self) -> None:
        """Listen no longer. Idempotent."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
