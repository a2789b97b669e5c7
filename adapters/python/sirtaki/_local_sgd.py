"""LocalSgdBase: local updates (local SGD) of an optimizer; the part shared by all frameworks."""

from __future__ import annotations

import abc
import json
import math
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sirtaki import _core, _growth, basics, errors
from sirtaki._end_report import failing
from sirtaki.compression import for_optimizer
from sirtaki.local_updates import LocalUpdates, without_warmup
from sirtaki.ops import Description
from sirtaki.process_sets import ProcessSet, global_process_set

#: Merge rules of buffers, see sirtaki_local_open().
MEAN, VARIANCE, MAXIMUM = 0, 1, 2
_DEFAULT_STATE_ROUNDS = 3
#: Bits an element of the codecs of differences that travel with fewer than 32; other codecs count as 8.
_BITS = {"none": 32, "fp16": 16, "bf16": 16, "int4": 4, "twobit": 2, "onebit": 1}
_OTHER_BITS = 8
#: Part of the time that averages of optimizer states take, after the first.
_STATE_SHARE = 0.05

#: average gradients, reset the optimizer, equalize optimizers, donor, decisions, steps, delay, model changed
Outcome = tuple[bool, bool, bool, int, int, int, int, bool]
#: name, memory, merge rule, index of the buffer with the means
Buffer = tuple[str, Description, int, int]


#: All objects, and those that have made steps in the session and are not closed.
_trainings: weakref.WeakSet[LocalSgdBase] = weakref.WeakSet()
_active: weakref.WeakSet[LocalSgdBase] = weakref.WeakSet()


def rounds_between_averages(codec: str, affordable: int) -> int:
    """Returns the rounds between two averages of the state of an optimizer; see LocalUpdates.optimizer_state.

    States travel as float32 and block the step, so averages take the same part of the bytes with every codec.

    Args:
        codec: that of the differences in force.
        affordable: the fewest rounds that the time of an average allows; 0: no limit.
    """
    bits = _BITS.get(codec.partition(":")[0], _OTHER_BITS)
    return max(_DEFAULT_STATE_ROUNDS * 32 // bits, affordable)


def affordable_rounds(cost: float) -> int:
    """Returns the rounds after which another average may follow one that took as long as `cost` rounds."""
    return math.ceil(cost / _STATE_SHARE)


def check_join() -> None:
    """Refuses join() with local updates, and on a rank that has not begun. Raises UnsupportedError."""
    _growth.check_fresh()
    if len(_active) > 0:
        raise errors.UnsupportedError(
            f"join() on rank {basics.rank()} with local updates: ranks merge their models at the same steps, so all "
            "need the same number of them. Give every rank as many batches (drop the last ones, or repeat some), call "
            "the optimizer's drain() after the last one and leave join() out; or train with local_updates=1"
        )


def models_broadcast() -> None:
    """Records that the program has made the models of all ranks equal."""
    for training in list(_active):
        training.models_equal()


def _warn_undrained() -> None:
    for training in list(_active):
        training.warn_undrained()


basics.before_end(_warn_undrained)


def trainings() -> list[LocalSgdBase]:
    """Returns the local updates of the program that are not closed, in an order that is the same on all ranks."""
    return sorted((training for training in _trainings if not training._closed), key=lambda training: training._name)


def _abandon_all() -> None:
    for training in trainings():
        training.abandon()


basics.before_regroup(_abandon_all)


class LocalSgdBase(abc.ABC):
    """Local updates of one optimizer; see LocalUpdates. Used from one thread at a time.

    The runtime reads and writes memory at fixed addresses. For a framework that moves its tensors this memory holds
    copies, which _pull() and _push() update.
    """

    def __init__(
        self,
        name: str,
        config: LocalUpdates,
        codec: str | None,
        keeps_moments: bool,
        ranks: ProcessSet = global_process_set,
    ) -> None:
        """Makes local updates of `ranks`, under a name that is unique among them."""
        self._name = name
        self._ranks = ranks
        self._config = config
        self._codec = codec
        self._local: Any = None
        self._closed = False
        self._regions = 0
        self._loss: float | None = None
        #: Seconds in calls of the runtime after steps, including copies of the model except those inside a tf.function;
        #: and the part of it in which this thread worked.
        self.exposed_seconds = 0.0
        self._busy_seconds = 0.0
        self._steps = 0
        self._keeps_moments = keeps_moments
        #: Steps since the models were equal, and _params_version() at the last of them.
        self._steps_since_drain = 0
        self._version_at_step: Any = None
        #: The warm-up is over, on this rank or on another one before it has joined.
        self._warm = False
        self._forget_rounds()
        _trainings.add(self)

    def _forget_rounds(self) -> None:
        self._rounds = 0  # since the state of the optimizer was averaged
        self._affordable_rounds = 0  # between two averages; agreed on after each of them
        #: Rounds of local steps since then and their seconds, and the end of the last one; None: it was no local round.
        self._timed_rounds, self._timed_seconds = 0, 0.0
        self._round_ended: float | None = None
        self._mode: tuple[int, int, bool] | None = None

    # ---- what the optimizer calls ----

    def report_loss(self, loss: float) -> None:
        """Reports the loss of this rank for the current step."""
        self._loss = loss

    @property
    def starts(self) -> bool:
        """True before the first step."""
        return self._local is None and not self._closed and self._ranks.included() and self._ranks.size() > 1

    @property
    def runs(self) -> bool:
        """True from the first step of a session on."""
        return self._local is not None

    def drain(self) -> None:
        """Makes the models of all ranks equal. Collective."""
        if self._local is not None:
            self._timed(self._local.drain, self._pull, all_changed=True)
            self.models_equal()

    @contextmanager
    def synchronous(self) -> Iterator[None]:
        """Returns a context in which every step averages gradients. Collective at both ends."""
        if self.starts:
            self._start()
        if self._local is None or self._regions > 0:
            yield
            return
        self._pull()
        self._call(lambda: self._local.synchronous(True))
        self._regions += 1
        try:
            yield
        finally:
            self._regions -= 1
            if self._local is not None:
                self._pull()
                self._call(lambda: self._local.synchronous(False))

    def stats(self) -> dict[str, Any]:
        """Returns the statistics of local_stats()."""
        if self._local is None:
            return {}
        return {**json.loads(self._local.stats_json()), "busy_seconds": self._busy_seconds}

    def close(self) -> None:
        """Ends merges in flight; the parameters stay unchanged."""
        self.warn_undrained()
        _active.discard(self)
        self._closed = True
        if self._local is not None:
            self._local.close()
            self._local = None

    def abandon(self) -> None:
        """Gives up merges in flight, because the session ends: the next step begins anew. Never raises."""
        _active.discard(self)
        local, self._local = self._local, None
        if local is not None:
            local.close()
        self._forget_rounds()

    def models_equal(self) -> None:
        """Records that all ranks have the same model."""
        self._steps_since_drain = 0

    def warn_undrained(self) -> None:
        """Warns on rank 0, once, if training ends with models that may differ between ranks. Never raises."""
        steps, self._steps_since_drain = self._steps_since_drain, 0
        if steps == 0 or self._version_at_step != self._params_version() or failing() or not basics.is_initialized():
            return
        if basics.rank() == 0:
            with suppress(Warning):
                warnings.warn(
                    f"local updates end {steps} steps after the last drain(), so the ranks' models may differ; call "
                    "the optimizer's drain() after the last step, before the model is saved or evaluated",
                    stacklevel=2,
                )

    # ---- what a framework's own adds ----

    def _params_version(self) -> Any:
        """Returns a value that changes when the program writes parameters, if the framework can tell."""
        return None

    @abc.abstractmethod
    def _parameters(self) -> list[tuple[str, Description]]:
        """Returns names and descriptions of the parameters, all float32. Called once, at the start."""

    @abc.abstractmethod
    def _buffers(self) -> list[Buffer]:
        """Returns the buffers that are merged with the parameters."""

    @abc.abstractmethod
    def _pull(self) -> None:
        """Updates the memory from the model. Called before the runtime reads the memory."""

    @abc.abstractmethod
    def _push(self) -> None:
        """Updates the model from the memory. Called after the runtime has written parameters or buffers."""

    @abc.abstractmethod
    def _average_gradients(self, wanted: bool) -> None:
        """Switches the averaging of gradients on or off, from the next step on."""

    @abc.abstractmethod
    def _receive_state(self, donor: int, mine_is_void: bool) -> None:
        """Sends the state of the donor's optimizer to ranks whose own state is void. Collective."""

    @abc.abstractmethod
    def _reset_state(self) -> None:
        """Resets the state of the optimizer."""

    @abc.abstractmethod
    def _average_state(self) -> None:
        """Averages the states of the optimizers. Collective."""

    @abc.abstractmethod
    def _largest(self, value: float) -> float:
        """Returns the largest of the values of all ranks. Collective."""

    def _begin(self, local: Any) -> Outcome | None:
        """Makes the first call of the runtime; None: nothing is to be done."""
        outcome: Outcome = local.start()
        return outcome

    # ---- inside ----

    def _start(self) -> None:
        """Starts local updates before the first step. Collective; all ranks have the same model then."""
        config, function = self._config, self._config.interval
        steps = (lambda text: int(function(json.loads(text)))) if callable(function) else None
        parameters, buffers = self._parameters(), self._buffers()
        how = (*config.core_arguments(self._codec), self._ranks.wire())
        interval = for_optimizer(config.interval_text(), "other" if self._keeps_moments else "sgd")
        interval = without_warmup(interval) if self._warm else interval
        local = _core.Local(self._name, interval, steps, parameters, buffers, how)
        try:
            self._pull()
            outcome = self._begin(local)
        except BaseException:
            local.close()
            raise
        self._local = local
        _active.add(self)
        if outcome is not None:
            self._follow(outcome)

    def _state_rounds(self) -> int:
        """Returns the rounds between two averages of the state of the optimizer, the same on all ranks; 0: never."""
        given = self._config.optimizer_state
        if given is not None or not self._keeps_moments:
            return int(given or 0)
        return rounds_between_averages(json.loads(self._local.stats_json())["codec"], self._affordable_rounds)

    def _time_rounds(self, decisions: int) -> None:
        """Counts rounds of local steps that have just ended, and their time."""
        now = time.perf_counter()
        if self._round_ended is not None:
            self._timed_rounds += decisions
            self._timed_seconds += now - self._round_ended
        self._round_ended = now

    def _average_in_turn(self) -> None:
        """Averages the state of the optimizer. With "auto", agrees on the rounds to the next average. Collective."""
        begin = time.perf_counter()
        self._average_state()
        self._round_ended = time.perf_counter()
        # The steps of other policies do not depend on times.
        if self._timed_rounds > 0 and self._config.optimizer_state is None and self._config.is_auto():
            seconds_of_round = max(self._timed_seconds, 1e-9) / self._timed_rounds
            cost = self._largest((self._round_ended - begin) / seconds_of_round)
            self._affordable_rounds = affordable_rounds(cost)
        self._timed_rounds, self._timed_seconds = 0, 0.0

    def _step(self, lr: float, waited_ns: int, pull: Callable[[], None]) -> None:
        """Reports a step to the runtime; `pull` updates copies of the model."""
        self._steps += 1
        left = -1 if self._config.steps is None else max(int(self._config.steps) - self._steps, 0)
        loss, self._loss = self._loss, None
        self._timed(lambda: self._local.step(lr, loss, 1, left, waited_ns), pull)
        averages = self._mode is not None and self._mode[2]
        self._steps_since_drain = 0 if averages else self._steps_since_drain + 1
        self._version_at_step = self._params_version()

    def _timed(self, call: Callable[[], Outcome], pull: Callable[[], None], all_changed: bool = False) -> None:
        begin, begin_busy = time.perf_counter(), time.thread_time()
        pull()
        self._call(call, all_changed)
        self.exposed_seconds += time.perf_counter() - begin
        self._busy_seconds += time.thread_time() - begin_busy

    def _call(self, call: Callable[[], Outcome], all_changed: bool = False) -> None:
        outcome = call()
        # Set if only buffers were written, too.
        if all_changed or outcome[-1]:
            self._push()
        self._follow(outcome)

    def _follow(self, outcome: Outcome) -> None:
        averages, reset, equalize, donor, decisions, steps, delay, _ = outcome
        self._average_gradients(averages)
        self._warm = self._warm or not averages
        self._round_ended = None if averages else self._round_ended
        if donor >= 0:
            self._receive_state(donor, reset)
        elif reset:
            self._reset_state()
        before, self._mode = self._mode, (steps, delay, averages)
        if equalize:
            # With different momenta equal gradients would lead to different models.
            self._average_state()
        elif decisions > 0 and not averages:
            self._time_rounds(decisions)
            self._rounds += decisions
            if 0 < self._state_rounds() <= self._rounds:
                self._average_in_turn()
                self._rounds = 0
        if before not in (None, self._mode) and self._config.on_change is not None:
            self._config.on_change(self.stats())
