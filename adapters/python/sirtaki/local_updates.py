"""LocalUpdates: ranks train by themselves for some steps, and their models are merged behind the steps that follow.

Says what DistributedOptimizer(local_updates=...) takes. The work is the runtime's; here is what only the program knows:
parameters, buffers, the optimizer's state, learning rate and loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from sirtaki import _core
from sirtaki.compression import Choice, choice_of
from sirtaki.errors import require

#: A function of what all ranks measured in a round (step, lr, loss, seconds of a step and of transfers, variance...):
#: the steps of the next, the same on all ranks.
IntervalFunction = Callable[[dict[str, Any]], int]

_MERGES = {"corrected": 0, "overwrite": 1}
#: How the runtime reads the kind of an outer optimizer; 0 is none.
_MOMENTUM, _NESTEROV, _PRESET = 1, 2, 3


@dataclass(frozen=True)
class Outer:
    """An optimizer of what all ranks have agreed on, whose gradient is the mean of their differences from it.

    Momentum as in BMUF and SlowMo (Chen and Huo, 2016; Wang et al., 2020), Nesterov's as in DiLoCo (Douillard et al.,
    2023).
    """

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True


@dataclass(frozen=True)
class LocalUpdates:
    """How ranks train between merges of their models; see docs/local_updates.md.

    Attributes:
        interval: steps between two merges: a number; a policy, "auto", "qsr", "adacomm", "divergence" or "diloco",
            with its keys, as "auto:max=32"; or a function (IntervalFunction). 1 averages gradients in every step.
        fragments: pieces of the model that are merged one after another; 0: of 4 MiB, at most 8.
        merge: "corrected": steps made while a merge was on its way stay. "overwrite": they are lost; to compare with.
        outer: an Outer; None: the mean itself, or what the policy "diloco" brings.
        compression: how differences between models travel, as DistributedOptimizer's; None: as gradients do, or as the
            policy "diloco" has it; with "auto" only where the link needs it, and then as int8 if gradients travel as
            they are or by "auto". What does not arrive stays in the model that it comes from. No momentum correction.
        optimizer_state: rounds between two averages of the optimizer's state over ranks; 0: never. None: 0 for SGD,
            else 3 (after DES-LOC, Iacob et al., 2025).
        buffers: "average": buffers such as BatchNorm's become equal when models do. "local": they stay the rank's own.
        steps: how many steps the training has, if known: for the warm-up, and for the last round.
        on_change: called with local_stats() when the interval, the delay or the mode has changed.
    """

    interval: int | str | IntervalFunction = "auto"
    fragments: int = 0
    merge: str = "corrected"
    outer: Outer | None = None
    compression: Choice | None = None
    optimizer_state: int | None = None
    buffers: str = "average"
    steps: int | None = None
    on_change: Callable[[dict[str, Any]], None] | None = None

    def __post_init__(self) -> None:
        """Refuses values that make no sense."""
        chosen = self.interval
        known = callable(chosen) or (isinstance(chosen, (Integral, str)) and not isinstance(chosen, bool))
        require(known, f"the interval of local updates is {chosen!r}, not a number of steps, a policy or a function")
        require(self.merge in _MERGES, f'merge of local updates is {self.merge!r}, must be "corrected" or "overwrite"')
        known = self.buffers in ("average", "local")
        require(known, f'buffers of local updates is {self.buffers!r}, must be "average" or "local"')
        require(
            self.outer is None or isinstance(self.outer, Outer),
            f"outer of local updates is {self.outer!r}, must be an Outer, as Outer(lr=0.7, momentum=0.9), or None",
        )
        for name in ("fragments", "optimizer_state", "steps"):
            value = getattr(self, name)
            known = value is None or (isinstance(value, Integral) and not isinstance(value, bool) and value >= 0)
            require(known, f"{name} of local updates is {value!r}, not a number of 0 or more")

    def interval_text(self) -> str:
        """As the runtime reads it."""
        text = "callable" if callable(self.interval) else str(self.interval).strip()
        if self.compression is not None or not self._is_auto() or "compress=" in text:
            return text
        # By itself it compresses where the link needs it.
        return f"{text}{',' if ':' in text else ':'}compress=on"

    def _is_auto(self) -> bool:
        return isinstance(self.interval, str) and self.interval.strip().partition(":")[0] == "auto"

    def core_arguments(self, gradients: str | None) -> tuple[int, int, int, float, float, str | None]:
        """As the runtime takes it. `gradients`: how these travel; None: as the options say."""
        outer, lr, momentum = _PRESET, 1.0, 0.0
        if self.outer is not None:
            require(isinstance(self.outer.lr, Real), f"lr of Outer is {self.outer.lr!r}, not a number")
            lr, momentum = float(self.outer.lr), float(self.outer.momentum)
            outer = _NESTEROV if self.outer.nesterov else _MOMENTUM
        return (int(self.fragments), _MERGES[self.merge], outer, lr, momentum, self._codec(gradients))

    def _codec(self, gradients: str | None) -> str | None:
        if self.compression is not None:
            codec, compressor = choice_of(self.compression)
            require(compressor is None, "compression of local updates cannot be a compressor of your own")
            return "" if codec in (None, "none") else codec
        if self.interval_text().startswith("diloco"):
            return None
        if self._is_auto() and "compress=on" not in self.interval_text():
            return ""
        if self._is_auto() and (gradients in (None, "", "none") or gradients.partition(":")[0] == "auto"):
            # Where several steps share a transfer eight bits are few enough, and cost less than what is sparse.
            return "int8"
        return "" if gradients in (None, "none") else gradients


#: What DistributedOptimizer takes.
LocalChoice = int | str | IntervalFunction | LocalUpdates | None


def local_choice(choice: LocalChoice, option: str) -> LocalUpdates | None:
    """What holds: None for no local updates. `option`: local.updates, which counts where `choice` is None."""
    if choice is None:
        choice = option or None
    if choice is None or choice in ("off", "none"):
        return None
    made = choice if isinstance(choice, LocalUpdates) else LocalUpdates(choice)
    if not callable(made.interval):
        _core.check_interval(made.interval_text())
    return None if made.interval in (1, "1") else made
