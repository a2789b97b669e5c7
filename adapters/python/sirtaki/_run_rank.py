"""Program of each rank of sirtaki.run(): `python -m sirtaki._run_rank FOLDER`."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any


def _write(path: Path, good: bool, value: Any, text: str) -> None:
    """Writes `value`, a result or an exception, and its text. Omits a value that cannot be pickled."""
    import cloudpickle

    data = None
    try:
        data = cloudpickle.dumps(value)
    except Exception as error:
        text += f"the {'result' if good else 'exception'} cannot be pickled: {type(error).__name__}: {error}"
    temporary = path.with_suffix(f"{path.suffix}.part")
    temporary.write_bytes(pickle.dumps((good, data, text)))
    temporary.rename(path)


def main() -> int:
    """Calls the function in FOLDER/call and writes its outcome to FOLDER/result.RANK."""
    folder = Path(sys.argv[1])
    result = folder / f"result.{os.environ['SIRTAKI_JOB_RANK']}"
    try:
        function, args, kwargs = pickle.loads((folder / "call").read_bytes())
        value = function(*args, **kwargs)
    except (Exception, SystemExit) as error:
        text = traceback.format_exc()
        traceback.print_exc()
        _write(result, False, error, text)
        return 1
    _write(result, True, value, "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
