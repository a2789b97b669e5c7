"""The training and its link: conditions of an estimate, with units as people write them."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

#: Part of the bits on an Ethernet that are payload of TCP, with frames of 1514 bytes.
PAYLOAD_PART = 1448 / 1514
#: Part of a step that the backward pass takes where nobody has measured it.
BACKWARD_PART = 2 / 3

_BITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_COUNTS = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}


@dataclass(frozen=True)
class Compute:
    """Seconds of a step of the program alone.

    Attributes:
        forward: all but the backward pass.
        backward: from the first gradient to the last one.
        ready: seconds from the first gradient to that of each parameter; None: in proportion to elements.
    """

    forward: float
    backward: float
    ready: tuple[float, ...] | None = None

    @property
    def seconds(self) -> float:
        """Returns the seconds of a step."""
        return self.forward + self.backward


@dataclass(frozen=True)
class Conditions:
    """A training on a link.

    Attributes:
        bytes_per_second: payload of one rank in one direction.
        latency: seconds of one message.
        ranks: ranks, each on a host of its own.
        optimizer: "sgd", "adam" or "other", as policies distinguish them.
        moments: numbers that the optimizer keeps for each parameter.
    """

    bytes_per_second: float
    latency: float
    ranks: int
    compute: Compute
    optimizer: str = "sgd"
    moments: int = 0


def of_step(seconds: float) -> Compute:
    """Returns a step of so many seconds whose parts are not known."""
    return Compute(seconds * (1 - BACKWARD_PART), seconds * BACKWARD_PART)


def bandwidth(text: str) -> float:
    """Returns the payload in bytes a second of a rate such as 100Mbit, 1Gbit/s or 12.5MB/s."""
    found = re.fullmatch(r"([0-9.]+)\s*([kmg]?)(bit|b|B)(?:/s|ps)?", text.strip(), re.IGNORECASE)
    number = _number(found[1]) if found else 0.0
    if found is None or number <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate; write it as 100Mbit, 1Gbit or 12.5MB")
    bits = 8 if found[3] == "B" else 1
    return number * _BITS[found[2].lower()] * bits / 8 * PAYLOAD_PART


def duration(text: str) -> float:
    """Returns the seconds of a time such as 0.3ms, 40ms or 2s."""
    found = re.fullmatch(r"([0-9.]+)\s*(ns|us|ms|s)", text.strip())
    if found is None or _number(found[1]) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write it with its unit, as 0.3ms")
    return _number(found[1]) * _SECONDS[found[2]]


def count(text: str) -> int:
    """Returns a number of parameters such as 25M, 400k or 1.5B."""
    found = re.fullmatch(r"([0-9.]+)\s*([kmbg]?)", text.strip(), re.IGNORECASE)
    number = round(_number(found[1]) * _COUNTS[found[2].lower()]) if found else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of parameters; write it as 25M or 400k")
    return number


def ranks(text: str) -> int:
    """Returns a number of ranks."""
    if not text.isdecimal() or not 2 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} ranks: an estimate needs two or more, since one rank sends nothing")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0
