"""Python imports this module at its start: a rank whose program needs torch lets a warm interpreter run it.

On the path of the programs of tests that ask for it (the fixture warm_ranks), however these start their ranks. All
other programs run as ever, as do ranks with other variables than those with which the warm interpreter has imported
torch, in another network, or whose interpreter has options.
"""

import os
import sys

#: Folder of client.py, and the two sockets of the servers with torch.
SERVERS = os.environ.get("WARM_SERVERS", "").split(os.pathsep)
RANK = ("SIRTAKI_JOB_RANK", "RANK")


def program_text(arguments: list[str]) -> str:
    """Returns the text of a program, as far as it is known before it runs."""
    if arguments[:1] == ["-c"]:
        return arguments[1]
    path = arguments[1].replace(".", "/") + ".py" if arguments[:1] == ["-m"] else (arguments or [""])[0]
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""


def needs_torch(arguments: list[str]) -> bool:
    """Returns True for a program with torch and without TensorFlow by its text."""
    text = program_text(arguments)
    benchmark = arguments[1:2] == ["benchmarks.common.worker"]
    return benchmark or ("torch" in text and "tensorflow" not in text and "keras" not in text)


if len(SERVERS) == 3 and any(name in os.environ for name in RANK) and needs_torch(sys.orig_argv[1:]):
    sys.path.insert(0, SERVERS[0])
    import client

    del sys.path[0], sys.modules["client"]  # which the program may have, too
    client.run_warm(SERVERS[1:], sys.orig_argv[1:])
