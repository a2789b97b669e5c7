"""Shared by all Python tests."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator

import pytest

HANG_SECONDS = 420  # above the limits of the jobs that tests start
#: A worker keeps a file, so that files of minutes start first and none is left for one worker at the end.
LONG_FILES = (
    "test_keras.py",
    "test_examples.py",
    "test_parallel.py",
    "test_life.py",
    "test_elastic_torch.py",
    "test_torch_distributed.py",
    "test_elastic_plain.py",
    "test_tensorflow.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers of CONTRIBUTING.md."""
    config.addinivalue_line("markers", "compat: runs under other launchers; slow; `make compat`")
    # A shell's background and nohup ignore these, and so would everything that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of long files first, and leaves the order within a file."""
    items.sort(key=lambda item: LONG_FILES.index(item.path.name) if item.path.name in LONG_FILES else len(LONG_FILES))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> object:
    """Prints where every thread stands and ends the run when one test hangs."""
    del item
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _environment_stays() -> Iterator[None]:
    """Restores variables: TensorFlow and torch set some on import, and ranks of later tests would start cold."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def warm_ranks(_environment_stays: None) -> None:
    """Lets ranks with torch run as forks of an interpreter that has imported it, however the test starts them.

    It saves seconds of each rank. A fork has another pid, parent, process group and session than the rank and not its
    first variables in /proc, and gets signals as by kill(), so tests of signals and exits need new interpreters.
    """
    from rank_support import environment, pool  # which only pytest has on its path

    os.environ.update(pool().variables(environment()))
