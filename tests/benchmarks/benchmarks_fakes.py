"""Fake systems of a known speed, for tests of the rig without any framework."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.common.systems import Place


class Fake:
    """A system whose every all-reduce takes a known time."""

    seconds = 0.001

    def start(self, place: Place) -> None:
        self.place = place

    def stop(self) -> None:
        pass

    def allreduce(self, tensor: Any, name: str) -> None:
        del tensor, name
        time.sleep(self.seconds)  # lint: allow(sleep) a system of known speed


class Slow(Fake):
    """A system that is five times as slow."""

    seconds = 0.005


class Dies(Fake):
    """A system whose second rank ends its process in the first call."""

    def allreduce(self, tensor: Any, name: str) -> None:
        if self.place.rank == 1:
            print("fatal: no more sums", flush=True)
            os._exit(7)
        time.sleep(0.3)  # lint: allow(sleep) the survivor is still busy when the other one is gone


class Refuses(Fake):
    """A system that cannot start on rank 1."""

    def start(self, place: Place) -> None:
        if place.rank == 1:
            raise RuntimeError("no sums today")
