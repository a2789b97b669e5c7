"""Workloads of the ranks between two clock readings; they run inside worker processes.

Thread: the main thread of the worker (and that of autograd, in training steps). The rig calls every method on all ranks
with the same arguments. Times are seconds an iteration, by the monotonic clock of this rank.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.common.proc import process_counters, reset_peak_rss
from benchmarks.common.systems import Place, System

_BIG_BYTES = 16 << 20
#: Number of small all-reduces on an idle link; only the last one counts.
_EMPTYING = 6


class Bench:
    """Workloads on the systems of one rank."""

    def __init__(self, place: Place, systems: Mapping[str, System]) -> None:
        self._place = place
        self._systems = systems
        self._tensors: dict[int, Any] = {}
        self._many: dict[str, Any] = {}
        self._training: dict[str, Any] = {}
        self._gaps: list[tuple[float, float]] | None = None
        self._urgent: dict[str, Any] = {}
        self._learners: dict[str, Any] = {}
        self._streams: Any = None

    def ping(self) -> int:
        """Returns the rank, as a sign that the worker is alive."""
        return self._place.rank

    # ---- dense all-reduce ------------------------------------------------------------------

    def _tensor(self, numel: int) -> Any:
        if numel == 0:
            return None
        import torch

        if numel not in self._tensors:
            self._tensors.clear()
            self._tensors[numel] = torch.zeros(numel, dtype=torch.float32)
        return self._tensors[numel]

    def allreduce_check(self, system: str, numel: int) -> float:
        """Sums a pattern of each rank; raises an error unless every element is right. Returns the seconds taken."""
        import torch

        tensor = self._tensor(numel)
        pattern = torch.arange(numel, dtype=torch.float32).remainder_(251)
        torch.add(pattern, float(self._place.rank), out=tensor)
        begin = time.perf_counter()
        self._systems[system].allreduce(tensor, f"bench.{numel}")
        seconds = time.perf_counter() - begin
        size = self._place.size
        wanted = pattern.mul_(size).add_(size * (size - 1) / 2)
        if not torch.equal(tensor, wanted):
            wrong = int((tensor != wanted).sum())
            raise RuntimeError(f"{system}: {wrong} of {numel} sums are wrong on rank {self._place.rank}")
        tensor.zero_()
        return seconds

    def allreduce_blocks(self, numel: int, blocks: list[list[Any]]) -> list[float]:
        """Runs `[system, iterations]` blocks in order; returns the seconds an iteration of each.

        The first iteration of a block is not counted: it synchronizes the ranks. For large tensors a small all-reduce
        does that.
        """
        return self._timed_blocks(numel, blocks, time.perf_counter)

    def allreduce_cpu(self, numel: int, blocks: list[list[Any]]) -> list[float]:
        """Like allreduce_blocks, but returns processor seconds of all threads of this process."""
        return self._timed_blocks(numel, blocks, time.process_time)

    def _timed_blocks(self, numel: int, blocks: list[list[Any]], clock: Callable[[], float]) -> list[float]:
        tensor = self._tensor(numel)
        name = f"bench.{numel}"
        first = tensor[:1] if 4 * numel >= _BIG_BYTES else tensor
        first_name = "bench.1" if 4 * numel >= _BIG_BYTES else name
        out = []
        for system, iterations in blocks:
            allreduce = self._systems[system].allreduce
            allreduce(first, first_name)
            begin = clock()
            for _ in range(iterations):
                allreduce(tensor, name)
            out.append((clock() - begin) / iterations)
        return out

    def memory_copy(self, seconds: float) -> float:
        """Bytes a second that this rank copies from memory to memory, while all ranks copy."""
        import torch

        source = torch.zeros(16 << 20, dtype=torch.float32)
        target = torch.zeros_like(source)
        begin, copies = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            target.copy_(source)
            copies += 1
        return copies * source.numel() * 4 / (time.perf_counter() - begin)

    # ---- many small tensors ----------------------------------------------------------------

    def many_prepare(self, sizes: list[int], seed: int) -> None:
        """Makes the tensors of the raw workload, and the generator of submission orders of this rank."""
        import torch

        self._many = {
            "tensors": [torch.zeros(numel) for numel in sizes],
            "names": [f"many.{len(sizes)}.{index}" for index in range(len(sizes))],
            "random": random.Random(seed * 1000 + self._place.rank),
        }

    def many_check(self, system: str) -> None:
        """Sums rank + 1 in every tensor; raises an error unless every sum is right."""
        tensors, size = self._many["tensors"], self._place.size
        for tensor in tensors:
            tensor.fill_(float(self._place.rank + 1))
        self._many_once(system)
        wanted = size * (size + 1) / 2
        wrong = [i for i, tensor in enumerate(tensors) if not bool((tensor == wanted).all())]
        for tensor in tensors:
            tensor.zero_()
        if wrong:
            raise RuntimeError(f"{system}: tensors {wrong[:5]} are wrong on rank {self._place.rank}")

    def _many_once(self, system: str) -> None:
        order = list(range(len(self._many["tensors"])))
        self._many["random"].shuffle(order)
        self._systems[system].allreduce_many(self._many["tensors"], self._many["names"], order)

    def many_blocks(self, blocks: list[list[Any]]) -> list[float]:
        """Like allreduce_blocks, for all tensors of `many_prepare` at once."""
        out = []
        for system, iterations in blocks:
            self._many_once(system)
            begin = time.perf_counter()
            for _ in range(iterations):
                self._many_once(system)
            out.append((time.perf_counter() - begin) / iterations)
        return out

    # ---- paced training steps --------------------------------------------------------------

    def training_calibrate(self, recipe: dict[str, Any]) -> None:
        """Until training_drop(), layers include the overhead of the framework between them; all ranks at once."""
        from benchmarks.training.paced import calibrate

        self._gaps = calibrate(self._place, recipe)

    def training_prepare(self, system: str, recipe: dict[str, Any]) -> None:
        """Makes the paced model of `recipe` (benchmarks/training/paced.py) and gives it to a system."""
        from benchmarks.training.paced import Training

        self._training[system] = Training(self._place, self._systems[system], {**recipe, "gaps": self._gaps})

    def training_check(self, system: str) -> None:
        """Makes one step; raises an error unless every averaged gradient is right."""
        self._training[system].check()

    def training_blocks(self, blocks: list[list[Any]]) -> list[float]:
        """Like allreduce_blocks, for whole training steps.

        A step that is not counted comes first, so that every counted step follows a step of the same system, as in a
        training: it synchronizes the ranks, fills pipelines, and revives connections that were idle in the turns of
        other systems.
        """
        out = []
        for system, iterations in blocks:
            training = self._training[system]
            training.step()
            begin = time.perf_counter()
            for _ in range(iterations):
                training.step()
            out.append((time.perf_counter() - begin) / iterations)
            training.drain()
        return out

    def training_warm(self, system: str, steps: int) -> None:
        """Makes steps that are not timed, for systems that plan from measured steps."""
        training = self._training[system]
        for _ in range(steps):
            training.step()
        training.drain()

    def training_trace(self, system: str, path: str, steps: int) -> None:
        """Makes steps with a trace of all ranks; the file is complete some seconds later."""
        training, ours = self._training[system], self._systems[system]
        if self._place.rank == 0:
            ours.start_timeline(path)  # type: ignore[attr-defined]
        training.step()
        training.drain()
        training.mark_layers(ours.mark)  # type: ignore[attr-defined]
        for _ in range(steps):
            training.step()
        training.drain()
        training.mark_layers(None)
        if self._place.rank == 0:
            ours.stop_timeline()  # type: ignore[attr-defined]

    def training_drop(self) -> None:
        """Drops the models."""
        self._training.clear()
        self._gaps = None

    # ---- real trainings --------------------------------------------------------------------

    def learn_prepare(self, name: str, system: str, recipe: dict[str, Any]) -> None:
        """Makes a training (benchmarks/training/learning.py) and keeps it under a name."""
        from benchmarks.training.learning import Learner

        self._learners[name] = Learner(self._place, self._systems[system], recipe)

    def learn_run(self, name: str, steps: int) -> float:
        """Runs some steps; returns the seconds a step."""
        seconds: float = self._learners[name].run(steps)
        return seconds

    def learn_outcome(self, name: str, last: int) -> dict[str, Any]:
        """Returns the results of the training so far."""
        outcome: dict[str, Any] = self._learners[name].outcome(last)
        return outcome

    def learn_losses(self, name: str) -> list[float]:
        """Losses of this rank, step by step."""
        losses: list[float] = self._learners[name].losses
        return losses

    def learn_watched(self, name: str) -> dict[str, Any]:
        """Losses, ends of steps on the clock of the machine, and further records of a watched training."""
        watched: dict[str, Any] = self._learners[name].watched()
        return watched

    def learn_curve(self, name: str) -> list[list[float]]:
        """Steps and losses of the models that a training kept, and of its last model."""
        points: list[list[float]] = self._learners[name].curve()
        return points

    def learn_ready(self, name: str) -> list[float]:
        """Times of the gradients of a replayed training."""
        ready: list[float] = self._learners[name].ready()
        return ready

    def learn_blocks(self, blocks: list[list[Any]]) -> list[float]:
        """Like allreduce_blocks, for steps of trainings by name."""
        out = []
        for name, steps in blocks:
            self._learners[name].step()
            out.append(self._learners[name].run(steps))
        return out

    def fit(self, door: str, way: str, recipe: dict[str, Any]) -> dict[str, Any]:
        """Trains with the trainer of another library (benchmarks/adapters/programs.py); returns its records."""
        from benchmarks.adapters.programs import fit

        return fit(self._place, door, way, recipe)

    def learn_drop(self, names: list[str]) -> None:
        """Drops trainings."""
        for name in names:
            del self._learners[name]

    # ---- compressed all-reduce -------------------------------------------------------------

    def compressed_prepare(self, methods: dict[str, str], numel: int, seed: int) -> None:
        """Opens a stream of one large tensor for each method (benchmarks/training/compressed.py)."""
        from benchmarks.training.compressed import Streams

        self._streams = Streams(self._place, self._systems, methods, numel, seed)

    def compressed_check(self, method: str) -> list[float]:
        """Makes one step; returns the numbers that the main process checks."""
        found: list[float] = self._streams.check(method)
        return found

    def compressed_blocks(self, blocks: list[list[Any]]) -> list[float]:
        """Like allreduce_blocks, for steps of streams by method."""
        return [self._streams.run(method, steps) for method, steps in blocks]

    # ---- an urgent operation behind a large one --------------------------------------------

    def urgent_prepare(self, bulk_numel: int, urgent_numel: int) -> None:
        """Makes the two tensors."""
        import torch

        self._urgent = {"bulk": torch.zeros(bulk_numel), "urgent": torch.zeros(urgent_numel)}

    def urgent_round(self, system: str, urgent: str, delay: float) -> dict[str, float]:
        """Starts the large all-reduce and, `delay` seconds later, the small one; returns the seconds of both.

        Checks all sums.

        `urgent`: "urgent" (with priority, while the large one runs), "after" (when it has ended), "none", or "only"
        (without the large one).
        """
        if urgent == "only":
            return self._urgent_only(system)
        made = self._systems[system]
        bulk, small = self._urgent["bulk"], self._urgent["urgent"]
        bulk.fill_(float(self._place.rank + 1))
        small.fill_(float(self._place.rank + 1))
        made.allreduce(self._urgent["urgent"][:1].clone(), "urgent.together")
        begin = time.perf_counter()
        wait_bulk = made.start_allreduce(bulk, "urgent.bulk", 10)
        time.sleep(delay)
        asked = time.perf_counter()
        seconds = {}
        if urgent == "urgent":
            made.start_allreduce(small, "urgent.small", -10)()
            seconds["urgent"] = time.perf_counter() - asked
        wait_bulk()
        seconds["bulk"] = time.perf_counter() - begin
        if urgent == "after":
            made.start_allreduce(small, "urgent.small", -10)()
            seconds["urgent"] = time.perf_counter() - asked
        self._urgent_check(system, ("bulk",) if urgent == "none" else ("bulk", "urgent"))
        return seconds

    def _urgent_only(self, system: str) -> dict[str, float]:
        made, small = self._systems[system], self._urgent["urgent"]
        # The first ones synchronize the ranks and use up the burst that a shaped link has saved while it was idle.
        for _ in range(_EMPTYING):
            small.fill_(float(self._place.rank + 1))
            begin = time.perf_counter()
            made.start_allreduce(small, "urgent.small", -10)()
            seconds = time.perf_counter() - begin
        self._urgent_check(system, ("urgent",))
        return {"urgent": seconds}

    def _urgent_check(self, system: str, names: Sequence[str]) -> None:
        wanted = self._place.size * (self._place.size + 1) / 2
        for name in names:
            if not bool((self._urgent[name] == wanted).all()):
                raise RuntimeError(f"{system}: the {name} sums are wrong on rank {self._place.rank}")

    # ---- counters --------------------------------------------------------------------------

    def touch(self, numel: int) -> None:
        """Allocates the all-reduce tensor and writes every page of it."""
        self._tensor(numel).fill_(0.0)

    def counters(self, reset_peak: bool = False) -> dict[str, Any]:
        """Resident memory and context switches by thread of this process (benchmarks/common/proc.py)."""
        counters = process_counters()
        if reset_peak:
            reset_peak_rss()
        return counters

    def option(self, system: str, name: str) -> Any:
        """Value of an option of a system."""
        return self._systems[system].option(name)  # type: ignore[attr-defined]

    def stats(self, system: str) -> dict[str, Any]:
        """Counters of a system; {} if the system has none."""
        read = getattr(self._systems[system], "stats", None)
        return {} if read is None else dict(read())
