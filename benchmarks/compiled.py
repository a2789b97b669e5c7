"""Times within backward at which gradients become ready: a compiled transformer as a whole, in regions and by layer.

    python -m benchmarks.compiled [--quick] [--backends inductor] [--systems eager,whole,regions,layers]

One process, one thread. The systems are: `eager`; `whole`, torch.compile of the model; `regions`,
sirtaki.torch.compile with its defaults; `layers`, each layer of the transformer compiled by itself (`layer.compile()`).
They take turns step by step. `ready_first` and `ready_median` are shares of backward: 0 is its beginning, 1 its end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common.rig import LOOPBACK, finish, parse, run, say
from benchmarks.results import Row, make_row
from benchmarks.statistics import estimate, median, paired_ratio

EAGER, WHOLE, REGIONS, LAYERS = SYSTEMS = ("eager", "whole", "regions", "layers")
BACKENDS = ("inductor", "aot_eager")
WIDTH, HEADS, DEPTH, ROWS, LENGTH, SYMBOLS = 128, 4, 8, 16, 64, 256
WARM_STEPS, STEPS, QUICK_STEPS = 4, 30, 3
#: Largest share of backward that may pass until half of the gradients of a model in regions are ready.
HALF_READY = 0.75


class Net(nn.Module):
    """A transformer over bytes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(DEPTH)
        )
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, text: Tensor) -> Tensor:
        """Returns scores of the byte that follows each byte."""
        hidden = self.embedding(text)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def compiled(system: str, backend: str) -> tuple[Net, Callable[[Tensor], Tensor]]:
    """Returns a model and what to call in its place."""
    import sirtaki.torch as hvd

    net = Net()
    if system == LAYERS:
        for layer in net.layers:
            layer.compile(backend=backend)
    made = {WHOLE: torch.compile, REGIONS: hvd.compile}
    return net, made[system](net, backend=backend) if system in made else net


class Timed:
    """A model that notes when its gradients become ready."""

    def __init__(self, system: str, backend: str) -> None:
        self._net, self._run = compiled(system, backend)
        self._ready: list[float] = []
        for param in self._net.parameters():
            param.register_post_accumulate_grad_hook(lambda _: self._ready.append(time.perf_counter()))

    def step(self, number: int) -> dict[str, float]:
        """Runs forward and backward; returns the figures of backward."""
        generator = torch.Generator().manual_seed(number)
        text = torch.randint(SYMBOLS, (ROWS, LENGTH), generator=generator)
        self._net.zero_grad()
        loss = self._run(text).logsumexp(-1).mean()
        self._ready.clear()
        begin = time.perf_counter()
        loss.backward()
        seconds = time.perf_counter() - begin
        shares = [(at - begin) / seconds for at in self._ready]
        return {"ready_first": shares[0], "ready_median": median(shares), "backward_seconds": seconds}


def measure(backend: str, systems: Sequence[str], steps: int) -> dict[str, dict[str, list[float]]]:
    """Returns the figures of each step, by system."""
    torch.set_num_threads(1)
    models = {}
    for system in systems:
        say(f"{backend}: {system}")
        models[system] = Timed(system, backend)
        for number in range(WARM_STEPS):
            models[system].step(number)
    found: dict[str, dict[str, list[float]]] = {system: {} for system in systems}
    for number in range(steps):
        for system, model in models.items():
            for metric, value in model.step(number).items():
                found[system].setdefault(metric, []).append(value)
    return found


def rows_of(backend: str, found: dict[str, dict[str, list[float]]]) -> list[Row]:
    """Returns the rows of one backend."""
    rows = []
    for system, figures in found.items():
        params: dict[str, Any] = {"backend": backend, "system": system}
        for metric, values in figures.items():
            target = HALF_READY if (system, metric) == (REGIONS, "ready_median") else None
            unit = "s" if metric == "backward_seconds" else "share"
            rows.append(make_row(metric, params, estimate(values), unit, "lower", target=target))
        if WHOLE in found and system != WHOLE:
            ratio = paired_ratio(figures["backward_seconds"], found[WHOLE]["backward_seconds"])
            rows.append(make_row("backward_over_whole", params, ratio, "ratio", "lower", baseline=(WHOLE, 1.0)))
    return rows


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    options, store = parse("compiled", __doc__ or "", (LOOPBACK,), (1,), SYSTEMS, backends=BACKENDS)
    rows: list[Row] = []
    for backend in options.more["backends"]:
        if store.samples(backend) is None:
            store.keep(backend, measure(backend, options.systems, QUICK_STEPS if options.quick else STEPS))
        rows += rows_of(backend, store.samples(backend))
    return finish(store, rows)


if __name__ == "__main__":
    sys.exit(run(main))
