"""LocalUpdates: local SGD, in which ranks make several steps alone and merge their models during the steps that follow.

Configures DistributedOptimizer(local_updates=...). The runtime does the work; the adapters supply parameters, buffers,
the state of the optimizer, learning rate and loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from sirtaki import _core
from sirtaki.compression import Choice, choice_of
from sirtaki.errors import require

#: Function of the measurements of all ranks in a round (step, lr, loss, seconds of a step and of transfers,
#: variance...). Returns the number of steps of the next round, the same on all ranks.
IntervalFunction = Callable[[dict[str, Any]], int]

_MERGES = {"corrected": 0, "overwrite": 1}
#: Attribute of a model, which can be called as a function can -> the call that takes its local updates.
_CALLS = {
    "trainable_variables": 'sirtaki.keras.DistributedOptimizer(optimizer, local_updates="auto")',
    "named_parameters": 'sirtaki.torch.ddp.accelerate(model, optimizer, local_updates="auto")',
}
#: Kinds of an outer optimizer, as the runtime reads them.
_PLAIN, _MOMENTUM, _NESTEROV, _PRESET = 0, 1, 2, 3


@dataclass(frozen=True)
class Outer:
    """Outer optimizer: updates the agreed model by the mean of the differences of all ranks from that model.

    Momentum as in BMUF and SlowMo (Chen and Huo, 2016; Wang et al., 2020), that of Nesterov as in DiLoCo (Douillard et
    al., 2023).

    Attributes:
        lr: learning rate.
        momentum: momentum factor, at least 0 and below 1.
        nesterov: uses Nesterov momentum.
    """

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True


@dataclass(frozen=True)
class LocalUpdates:
    """Configuration of local updates; see docs/local_updates.md.

    Attributes:
        interval: steps between two merges: a number; a policy, "auto", "qsr", "adacomm", "divergence" or "diloco", with
            its keys, as "auto:max=32"; or a function (IntervalFunction). 1 averages gradients in every step.
        fragments: pieces of the model that are merged one after another; 0: of 4 MiB, at most 8.
        merge: "corrected": keeps the steps made during a merge. "overwrite": loses them; for comparison.
        outer: an Outer, or "none" for the plain mean; by default Outer(lr=0.7, momentum=0.9) with the policy "diloco"
            and Outer(lr=0.7, momentum=0.5) with all others.
        compression: compression of differences between models, as in DistributedOptimizer. With None: as for gradients,
            or as the policy "diloco" chooses; with the interval "auto" only if the link needs it, and then int8, twobit
            or onebit, as many bits as the link allows, unless gradients have a codec other than "none" and "auto".
            Drains then send int8; those of all other codecs are exact. The residual stays in the model of the rank. No
            momentum correction.
        optimizer_state: rounds between two averages of the state of the optimizer; 0: never; None: 0 for SGD, else 3
            (after DES-LOC, Iacob et al., 2025), as many times more as differences have fewer bits than float32: 12 with
            int8, 48 with two bits. With the interval "auto", later averages take about a twentieth of the time.
        buffers: "average": buffers such as those of BatchNorm are merged with the model. "local": they stay local.
        steps: number of steps of the training, if known: for the warm-up, the steps in which a learning rate has to
            stand still before local ones begin, and the last round. Steps that are left have to repay a drain.
        on_change: called with local_stats() after a change of interval, delay or mode.
    """

    interval: int | str | IntervalFunction = "auto"
    fragments: int = 0
    merge: str = "corrected"
    outer: Outer | str | None = None
    compression: Choice | None = None
    optimizer_state: int | None = None
    buffers: str = "average"
    steps: int | None = None
    on_change: Callable[[dict[str, Any]], None] | None = None

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError for invalid values."""
        chosen = self.interval
        _refuse_model(chosen)
        known = callable(chosen) or (isinstance(chosen, (Integral, str)) and not isinstance(chosen, bool))
        require(known, f"the interval of local updates is {chosen!r}, not a number of steps, a policy or a function")
        require(self.merge in _MERGES, f'merge of local updates is {self.merge!r}, must be "corrected" or "overwrite"')
        known = self.buffers in ("average", "local")
        require(known, f'buffers of local updates is {self.buffers!r}, must be "average" or "local"')
        require(
            self.outer in (None, "none") or isinstance(self.outer, Outer),
            f'outer of local updates is {self.outer!r}, must be an Outer, as Outer(lr=0.7, momentum=0.5), or "none"',
        )
        for name in ("fragments", "optimizer_state", "steps"):
            value = getattr(self, name)
            known = value is None or (isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0)
            require(known, f"{name} of local updates is {value!r}, not a number of 0 or more")

    def interval_text(self) -> str:
        """Returns the interval as the runtime reads it."""
        text = "callable" if callable(self.interval) else str(self.interval).strip()
        if not self._chooses_bits() or "compress=" in text:
            return text
        # Such a policy compresses only if the link needs it.
        return f"{text}{',' if ':' in text else ':'}compress=on"

    def is_auto(self) -> bool:
        """Returns True if the policy of the interval is "auto", which follows the link."""
        return isinstance(self.interval, str) and self.interval.strip().partition(":")[0] == "auto"

    def gradient_compression(self, chosen: str | None, option: str) -> str | None:
        """Returns the compression of averaged gradients, the warm-up and later synchronous steps among them.

        "auto" of local updates chooses the cheapest step, and on a slow link that is no dense one.

        Args:
            chosen: the choice of the program; None: the options decide.
            option: the text of the options.
        """
        return "auto" if chosen is None and option == "none" and self.is_auto() else chosen

    def _chooses_bits(self) -> bool:
        return self.is_auto() and (self.compression is None or choice_of(self.compression)[0] == "auto")

    def core_arguments(self, gradients: str | None) -> tuple[int, int, int, float, float, str | None]:
        """Returns the arguments of _core.Local; `gradients` is the codec of gradients, None: that of the options."""
        outer, lr, momentum = _PRESET, 1.0, 0.0
        if self.outer == "none":
            outer = _PLAIN
        elif isinstance(self.outer, Outer):
            require(isinstance(self.outer.lr, Real), f"lr of Outer is {self.outer.lr!r}, not a number")
            lr, momentum = float(self.outer.lr), float(self.outer.momentum)
            outer = _NESTEROV if self.outer.nesterov and momentum > 0 else _MOMENTUM
        return (int(self.fragments), _MERGES[self.merge], outer, lr, momentum, self._codec(gradients))

    def _codec(self, gradients: str | None) -> str | None:
        if self.compression is not None and not self._chooses_bits():
            codec, compressor = choice_of(self.compression)
            require(compressor is None, "compression of local updates cannot be a compressor of your own")
            return "" if codec in (None, "none") else codec
        if self.interval_text().startswith("diloco"):
            return None
        if self.is_auto() and "compress=on" not in self.interval_text():
            return ""
        if self.is_auto() and (gradients in (None, "", "none") or gradients.partition(":")[0] == "auto"):
            # The runtime takes 8, 2 or 1 bits, as the link needs: several steps share a transfer, so even one bit costs
            # less than longer intervals or sparse codecs.
            return "auto"
        return "" if gradients in (None, "none") else gradients


def _refuse_model(chosen: Any) -> None:
    """Refuses a model of Keras or torch. Raises InvalidArgumentError."""
    call = next((call for name, call in _CALLS.items() if hasattr(type(chosen), name)), "")
    require(not call, f'LocalUpdates takes no model, it is a configuration in place of "auto": call {call}')


def without_warmup(interval: str) -> str:
    """Returns the text of an interval without the synchronous steps of its warm-up."""
    policy, _, keys = interval.partition(":")
    if policy == "callable" or (policy.isdigit() and not keys):
        return interval  # without a warm-up as it is
    kept = [key for key in keys.split(",") if key and key.partition("=")[0].strip() != "warmup"]
    return f"{policy}:{','.join([*kept, 'warmup=0'])}"


#: Type of the argument local_updates of DistributedOptimizer.
LocalChoice = int | str | IntervalFunction | LocalUpdates | None


def local_choice(choice: LocalChoice, option: str) -> LocalUpdates | None:
    """Returns the configuration; None for no local updates. `option` is local.updates, used if `choice` is None."""
    if choice is None:
        choice = option or None
    if choice is None or choice in ("off", "none"):
        return None
    made = choice if isinstance(choice, LocalUpdates) else LocalUpdates(choice)
    if not callable(made.interval):
        _core.check_interval(made.interval_text())
    return None if made.interval in (1, "1") else made
