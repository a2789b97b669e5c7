"""Two ranks over NCCL on one GPU: a check that the runtime calls NCCL correctly.

    python -m benchmarks.gpu.smoke --program build/gpu/benchmarks/gpu/nccl_smoke

Started by benchmarks/gpu/run.sh. Each process has a host name of its own, so NCCL treats the ranks as ranks of several
hosts: they may share a device and communicate over the loopback interface. Times of this program say nothing about any
network.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RANKS = 2
LIMIT_SECONDS = 60
SETTINGS = {
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_FAMILY": "AF_INET",
    # Other algorithms and protocols spin on flags, while the other rank has no turn on the device.
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_SOCKET_NTHREADS": "4",
    "NCCL_NSOCKS_PERTHREAD": "1",
    "NCCL_MAX_CTAS": "4",
    # Both ranks have the place of one device in a fabric; NCCL must not take that for a link between the ranks.
    "NCCL_MNNVL_ENABLE": "0",
    # Newer versions of NCCL require this variable for a shared device; older ones ignore it.
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_RAS_ENABLE": "0",
    "NCCL_DEBUG": "WARN",
    "CUDA_MODULE_LOADING": "EAGER",
}


def settings(rank: int) -> dict[str, str]:
    """Environment variables for a rank that shares its GPU with others."""
    return {**SETTINGS, "NCCL_HOSTID": f"sirtaki-{rank}"}


def wheel_library() -> str:
    """Path of the libnccl.so.2 of the torch wheel; empty if torch uses the library of the system."""
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return ""
    places = [] if found is None else list(found.submodule_search_locations or ())
    return next((str(p) for place in places if (p := Path(place) / "lib/libnccl.so.2").is_file()), "")


def run(program: Path, library: str, environment: dict[str, str]) -> list[tuple[int, str]]:
    """Runs the ranks; returns exit status and output of each, with status 124 or 137 if the rank had to be ended."""
    with tempfile.TemporaryDirectory(prefix="sirtaki-nccl-") as folder:
        ranks = [
            subprocess.Popen(
                ["timeout", "-k", "5", str(LIMIT_SECONDS), str(program), str(rank), str(RANKS), folder, library],
                env={**environment, **settings(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(RANKS)
        ]
        outputs = [one.communicate()[0] for one in ranks]
        return [(one.returncode, output) for one, output in zip(ranks, outputs, strict=True)]


def main() -> int:
    """Returns 0 if all ranks received the expected results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.smoke", description=__doc__)
    parser.add_argument("--program", type=Path, required=True, help="nccl_smoke")
    parser.add_argument("--library", default=wheel_library(), help="libnccl.so.2 (default: torch's, else the system's)")
    arguments = parser.parse_args()
    ended = run(arguments.program, arguments.library, dict(os.environ))
    for rank, (status, output) in enumerate(ended):
        print(output, end="")
        if status != 0:
            print(f"smoke: rank {rank} ended with {status}", file=sys.stderr)
    return max(1 if status else 0 for status, _ in ended)


if __name__ == "__main__":
    sys.exit(main())
