"""Lines for the user on standard error."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(text: str) -> None:
    """Writes a line for the user to standard error, which the program may have closed."""
    with suppress(OSError, ValueError):
        print(f"sirtaki: {text}", file=sys.stderr, flush=True)
