"""Ranks that never come back from a case, for test_warm.py."""

from __future__ import annotations

import threading

import sirtaki


def case_before() -> None:
    assert sirtaki.size() == 2


def case_break() -> None:
    threading.Event().wait()
