"""horovod.runner.launch: runs a job with the command line of horovodrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from horovod import _unsupported
from horovod.runner.elastic import constants, driver
from sirtaki.launch import end, launcher_path, restore_sigquit

#: Begins lines of the launcher, of which an error shows the last ones.
_OWN_LINE = "sirtakirun: "
_LINES = 20
#: In the line about a job that has come to its limit.
_AT_LIMIT = re.compile(r"more than (?:once|(\d+) times) \(elastic\.reset_limit\)")


def parse_args() -> Namespace:
    """Returns the command line of this process, sys.argv, as `words`: sirtakirun reads the options of horovodrun."""
    return Namespace(words=sys.argv[1:])


def _run_elastic(args: Namespace) -> None:
    """Runs the job of parse_args() to its end.

    Raises:
        RuntimeError: the job has failed; the text ends with the last lines of sirtakirun.
    """
    interval = f"--discovery-interval={round(driver.DISCOVER_HOSTS_FREQUENCY_SECS * 1000)}ms"
    command = [launcher_path(), "--horovod", interval, *args.words]
    env = {"HOROVOD_ELASTIC_TIMEOUT": str(driver.ELASTIC_TIMEOUT_SECS), **os.environ}
    last: deque[str] = deque(maxlen=_LINES)
    with subprocess.Popen(
        command,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=restore_sigquit,  # noqa: PLW1509  (touches nothing but the signal)
    ) as launcher:
        assert launcher.stderr is not None
        try:
            for line in launcher.stderr:
                with suppress(OSError, ValueError):  # the program may have closed standard error
                    sys.stderr.write(line)
                if line.startswith(_OWN_LINE):
                    last.append(line)
            launcher.wait()
        except BaseException:
            end(launcher)
            raise
    if launcher.returncode != 0:
        raise RuntimeError(f"{_what(launcher.returncode, last)}\n{''.join(last)}")


def __getattr__(name: str) -> object:
    raise _unsupported.missing(__name__, name)


def _what(code: int, lines: Sequence[str]) -> str:
    if found := _AT_LIMIT.search("".join(lines)):
        return constants.RESET_LIMIT_EXCEEDED_MESSAGE.format(found[1] or 1)
    return f"{constants.FAILED_MESSAGE} (sirtakirun: exit code {code})"
