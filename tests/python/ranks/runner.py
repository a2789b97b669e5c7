"""Runs all cases of one module on this rank and writes their outcomes to a file.

python -m ranks.runner MODULE FOLDER. A case is a function named case_* without parameters and without a result.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

import sirtaki


def main() -> None:
    """Imports ranks.MODULE, runs every case in order of definition, writes FOLDER/RANK.json."""
    module = importlib.import_module(f"ranks.{sys.argv[1]}")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    sirtaki.init()
    rank = sirtaki.rank()
    outcomes: dict[str, dict[str, object]] = {}
    for name, case in list(vars(module).items()):
        if not name.startswith("case_"):
            continue
        begin = time.monotonic()
        text = ""
        try:
            case()
        except Exception:
            text = traceback.format_exc()
        outcomes[name] = {"error": text, "seconds": time.monotonic() - begin}
        Path(sys.argv[2], f"{rank}.json").write_text(json.dumps(outcomes))
    sirtaki.shutdown()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
