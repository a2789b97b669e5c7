"""Exceptions of Sirtaki: a class for each kind of failure, with the rank and the tensor to blame where known."""

from __future__ import annotations


class SirtakiError(Exception):
    """Base class of all errors of this package; `text` is its message.

    Attributes:
        rank: the rank to blame; None if unknown.
        tensor: name of the tensor or operation; None if unknown.
    """

    def __init__(self, text: str, rank: int | None = None, tensor: str | None = None) -> None:
        super().__init__(text)
        self.rank = rank
        self.tensor = tensor


class InvalidArgumentError(SirtakiError, ValueError):
    """A mistake of the caller, found on this rank alone."""


class UnsupportedError(SirtakiError, NotImplementedError):
    """A valid request that this build, or these arguments, do not support."""


class HorovodInternalError(SirtakiError, RuntimeError):
    """Base class of failures that concern several ranks; named as in Horovod, whose scripts catch it."""


class NotInitializedError(HorovodInternalError, ValueError):
    """The session has ended or was never opened."""


class MismatchError(HorovodInternalError):
    """Ranks disagree about shape, dtype, operation or options, or their states differ (elastic.divergence)."""


class PeerLostError(HorovodInternalError):
    """A rank died, left or is silent."""


class RanksChangedError(PeerLostError):
    """A rank of an elastic job was lost and the others go on; elastic.run() opens the next session."""


class AbortedError(HorovodInternalError):
    """The operation was ended by the failure of another, or by request."""


class StuckError(HorovodInternalError):
    """Every rank waits for an operation that another rank never submits."""


class NonFiniteError(HorovodInternalError):
    """A gradient holds NaN or infinity, and compression.nonfinite does not allow it: the step is void."""


class DeadlineError(HorovodInternalError):
    """A deadline has passed."""


class UnavailableError(HorovodInternalError):
    """An address, a file or a port cannot be reached or opened."""


class InternalError(HorovodInternalError):
    """A broken message, an exhausted resource or a defect of Sirtaki."""


TIMEOUT = 3
_CLASSES: dict[int, type[SirtakiError]] = {
    1: InvalidArgumentError,
    2: MismatchError,
    TIMEOUT: DeadlineError,
    4: PeerLostError,
    5: AbortedError,
    7: UnsupportedError,
    9: NotInitializedError,
    11: UnavailableError,
    12: StuckError,
    13: NonFiniteError,
    14: RanksChangedError,
}


def make_error(code: int, text: str, rank: int, tensor: str) -> SirtakiError:
    """Returns the exception for a sirtaki_status and the results of sirtaki_last_error*()."""
    return _CLASSES.get(code, InternalError)(text, rank if rank >= 0 else None, tensor or None)


def require(condition: bool, text: str) -> None:
    """Raises InvalidArgumentError with `text` unless `condition`."""
    if not condition:
        raise InvalidArgumentError(text)
