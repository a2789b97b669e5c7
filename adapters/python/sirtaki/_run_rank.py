"""What each rank of sirtaki.run() executes: `python -m sirtaki._run_rank FOLDER`."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any


def _write(path: Path, outcome: tuple[Any, ...]) -> None:
    import cloudpickle

    temporary = path.with_suffix(f"{path.suffix}.part")
    try:
        data = cloudpickle.dumps(outcome)
    except Exception as error:
        text = f"the result cannot be pickled: {error}"
        data = cloudpickle.dumps((False, None, text))
    temporary.write_bytes(data)
    temporary.rename(path)


def main() -> int:
    """Calls the function in FOLDER/call and leaves its outcome in FOLDER/result.RANK."""
    folder = Path(sys.argv[1])
    result = folder / f"result.{os.environ['SIRTAKI_JOB_RANK']}"
    try:
        function, args, kwargs = pickle.loads((folder / "call").read_bytes())
        value = function(*args, **kwargs)
    except Exception as error:
        text = traceback.format_exc()
        traceback.print_exc()
        _write(result, (False, error, text))
        return 1
    _write(result, (True, value))
    return 0


if __name__ == "__main__":
    sys.exit(main())
