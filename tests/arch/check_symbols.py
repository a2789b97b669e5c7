"""A library exports the symbols of its golden list and no others.

usage: check_symbols.py LIBRARY LIST; LIST has one symbol a line. A symbol that goes breaks programs that are built
already; one that is added belongs into the list, and into the C header.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def exported(library: str) -> set[str]:
    """Returns the symbols that `library` defines for others."""
    lines = subprocess.run(
        ["nm", "-D", "--defined-only", library], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return {line.split()[-1] for line in lines}


def differences(found: set[str], wanted: set[str]) -> list[str]:
    """Returns one line for each symbol that is missing or not in the list."""
    return [f"missing: {name}" for name in sorted(wanted - found)] + [
        f"not in the list: {name}" for name in sorted(found - wanted)
    ]


def main() -> int:
    """Command line."""
    library, golden = sys.argv[1:]
    lines = differences(exported(library), set(Path(golden).read_text().split()))
    for line in lines:
        print(f"{Path(golden).name}: {line}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
