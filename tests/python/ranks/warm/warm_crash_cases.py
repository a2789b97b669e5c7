"""A rank that crashes between two cases, for test_warm.py."""

from __future__ import annotations

import os
import signal

import sirtaki


def case_before() -> None:
    assert sirtaki.size() == 2


def case_break() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)
