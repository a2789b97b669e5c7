"""Phase: the state of one step of GradientReducer."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """The state of a step, from the first gradient to the last."""

    IDLE = "idle"  # nothing submitted since the last step
    FILLING = "filling"  # a backward is running, or ended with an exception
    ENDED = "ended"  # backward is over, and no stream is open yet
    IN_FLIGHT = "in flight"  # backward is over, the runtime works on the gradients
    REDUCED = "reduced"  # gradients are combined
