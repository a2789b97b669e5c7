"""`python -m benchmarks`: every benchmark after the other, with the same arguments; the list of all of them."""

from __future__ import annotations

import subprocess
import sys

# Modules of this package that measure, in the order in which `make bench` runs them.
BENCHMARKS = (
    "allreduce",
    "one_host",
    "small_tensors",
    "overlap",
    "urgent",
    "scale_sim",
    "idle",
    "kernels",
    "compiled",
    "compressed_allreduce",
    "methods",
    "ladder",
    "frontier",
    "doors",
    "estimate",
    "importance",
    "local_merges",
    "local_updates",
    "churn",
)


def main() -> int:
    """Runs every benchmark, even after one has failed, and names those that failed."""
    failed = [
        name
        for name in BENCHMARKS
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]], check=False).returncode != 0
    ]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
