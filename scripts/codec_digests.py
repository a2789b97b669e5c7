"""Sums fixed numbers of two ranks by each codec, and compares the bits of the results with those of x86-64.

Instruction sets differ in order and fusion of operations, and ranks of different machines must end with equal models.
wheel_test.py runs this program in each system, tests/packaging on the machine of the tests.

usage: sirtakirun -np 2 python codec_digests.py [--write]; --write prints the digests and compares nothing
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np

import sirtaki
from sirtaki import _core
from sirtaki.ops import ReduceOp

ROWS, COLUMNS = 96, 257
STEPS = 3
FLOAT32 = 8
DIGESTS = {
    "none": "ffcae6f304944f12",
    "fp16": "407d8f8b6280b4ba",
    "bf16": "5e5ae91197ceda7d",
    "int8": "a3a29ef12411cbb4",
    "int4": "366e55c3f7cc6800",
    "fp8_e4m3": "69f65bde217e5466",
    "fp8_e5m2": "4aed66dc893ecbe7",
    "onebit": "b99911a720d248ec",
    "twobit": "07416f82746767cb",
    "twobit:wire=scatter": "b7b68428cc545539",
    "group_topk": "474918c360f9d2c7",
    "group_topk:wire=gather": "474918c360f9d2c7",
    "threshold_sparse": "7b3a8b7539250535",
    "block_topk": "de71478cb53b85d4",
    "powersgd": "e456fbedecad04e0",
}


def gradient(rank: int, step: int) -> np.ndarray:
    """Returns numbers like gradients: many small, few large ones. Integers make them, so all machines get the same."""
    seed = np.uint64(1 + rank + 2 * step)
    bits = np.arange(ROWS * COLUMNS, dtype=np.uint64) * np.uint64(2654435761) + seed * np.uint64(40503)
    bits ^= bits >> np.uint64(13)
    bits *= np.uint64(0x9E3779B97F4A7C15)
    bits ^= bits >> np.uint64(29)
    fraction = (bits & np.uint64(0xFFFFFF)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    return np.ldexp(fraction, -((bits >> np.uint64(40)) % np.uint64(12)).astype(np.int32)).reshape(ROWS, COLUMNS)


def digest(codec: str) -> str:
    """Returns the digest of the results of some steps, in which residuals and factors of earlier steps take part."""
    tensors = [(0, FLOAT32, 0, 0, [ROWS, COLUMNS], None)]
    stream = _core.Stream(f"digest.{codec}", ["weight"], tensors, None, (int(ReduceOp.AVERAGE), 1.0, 1.0, codec, 0))
    found = hashlib.sha256()
    for step in range(STEPS):
        memory = gradient(sirtaki.rank(), step)
        stream.ready(0, memory.ctypes.data)
        stream.finish()
        stream.wait()
        assert np.isfinite(memory).all()
        found.update(memory.astype("<f4").tobytes())
    stream.close()
    return found.hexdigest()[:16]


def main() -> int:
    """Returns the exit status."""
    sirtaki.init()
    assert sirtaki.size() == 2
    different = []
    for codec, wanted in DIGESTS.items():
        found = digest(codec)
        if "--write" in sys.argv:
            if sirtaki.rank() == 0:
                print(f'    "{codec}": "{found}",')
        elif found != wanted:
            different.append(f"{codec}: {found}, on x86-64 {wanted}")
    sirtaki.shutdown()
    print("; ".join(different) or "equal digests")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
