"""Interleaved comparison of systems, and the common command line of all benchmarks.

Owned by: the main process of a benchmark, one thread. A sample is the time of one block of iterations on the slowest
rank; the systems take turns block by block, in an order that alternates, so that noise of the machine hits all alike.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import netns
from benchmarks.common.group import Group, GroupError
from benchmarks.network import netns_check
from benchmarks.results import RESULTS, Row, Store, load_warning, table

PAIRS = 30
QUICK_PAIRS = 5


@dataclass(frozen=True)
class Contender:
    """A system and its group of workers. The system takes part in every `every`-th turn."""

    name: str
    group: Group
    every: int = 1


@dataclass(frozen=True)
class Plan:
    """Number and length of the samples of one configuration."""

    pairs: int = PAIRS
    min_pairs: int = 6
    block_seconds: float = 0.05  # a block has as many iterations as fit, at least 1; 0: always block_iterations
    block_iterations: int = 1
    budget_seconds: float = 20.0  # fewer pairs, not below min_pairs, where PAIRS would take longer

    def iterations(self, seconds: float) -> int:
        """Returns the iterations of a block if one iteration takes `seconds`."""
        return max(1, min(2000, round(self.block_seconds / max(seconds, 1e-9))))

    def goes_on(self, done: int, seconds: float) -> bool:
        """Returns True if another pair is due after `done` pairs that took `seconds`."""
        if done < min(self.min_pairs, self.pairs):
            return True
        return done < self.pairs and seconds * (done + 1) / done <= self.budget_seconds


def turn_order(names: Sequence[str], turn: int) -> list[str]:
    """Order of the systems in a turn: rotated, and reversed every other time, so that none always follows another."""
    shift = (turn // 2) % len(names)
    rotated = [*names[shift:], *names[:shift]]
    return rotated if turn % 2 == 0 else rotated[::-1]


def interleave(contenders: Sequence[Contender], what: str, plan: Plan, **arguments: Any) -> dict[str, list[float]]:
    """Returns samples by system from request `what` of benchmarks/common/workloads.py.

    Samples i of all systems that take part in every turn form a set. Contenders of one group run their turn in one
    request. A group with Horovod is suspended while another group runs.
    """
    by_name = {contender.name: contender for contender in contenders}
    names = list(by_name)

    def run(order: Sequence[str], iterations: dict[str, int]) -> dict[str, float]:
        seconds: dict[str, float] = {}
        for group, members in _runs(order, by_name):
            blocks = [[name, iterations[name]] for name in members]
            with _running(group, contenders):
                answers = group.call(what, timeout=600, blocks=blocks, **arguments)
            for place, name in enumerate(members):
                seconds[name] = max(answer[place] for answer in answers)
        return seconds

    iterations = dict.fromkeys(names, 1 if plan.block_seconds > 0 else plan.block_iterations)
    if plan.block_seconds > 0:
        first = run(names, iterations)
        if min(first.values()) < plan.block_seconds:
            first = run(names, {name: plan.iterations(2 * first[name]) for name in names})
        iterations = {name: plan.iterations(first[name]) for name in names}
    samples: dict[str, list[float]] = {name: [] for name in names}
    turn, begin = 0, time.monotonic()
    while plan.goes_on(turn, time.monotonic() - begin):
        order = [name for name in turn_order(names, turn) if turn % by_name[name].every == 0]
        for name, seconds in run(order, iterations).items():
            samples[name].append(seconds)
        turn += 1
    return samples


def _runs(order: Sequence[str], by_name: dict[str, Contender]) -> list[tuple[Group, list[str]]]:
    runs: list[tuple[Group, list[str]]] = []
    for name in order:
        group = by_name[name].group
        if runs and runs[-1][0] is group:
            runs[-1][1].append(name)
        else:
            runs.append((group, [name]))
    return runs


@contextlib.contextmanager
def _running(group: Group, contenders: Sequence[Contender]) -> Iterator[None]:
    # Only Horovod is suspended: its loop never rests. Sirtaki is idle without work, and must send its heartbeats.
    others = {c.group for c in contenders if c.group is not group and "horovod" in c.group.systems}
    for other in others:
        other.pause()
    try:
        yield
    finally:
        for other in others:
            other.resume()


# ---- physical bounds -----------------------------------------------------------------------


def ring_bytes(size: int, payload: int) -> float:
    """Bytes that each rank must send in an all-reduce of `payload` bytes: 2 (P - 1) / P times the payload."""
    return 2.0 * (size - 1) / size * payload


def wire_bound(size: int, payload: int, rate_mbit: float) -> float:
    """Least seconds of an all-reduce on links of `rate_mbit` (TCP payload is 0.956 of the rate)."""
    rate = netns.LinkSpec(rate_mbit=rate_mbit).payload_bytes_per_second
    assert rate is not None
    return ring_bytes(size, payload) / rate


# ---- networks ------------------------------------------------------------------------------

LOOPBACK = "loopback"
UNSHAPED = "unshaped"
#: Burst of a link that carries compressed steps at its rate, too, for network().
SMALL_BURST_MS = 1.0


class Links(NamedTuple):
    """Shaped links by name. `delay_ms`: of a packet between two hosts, one way."""

    rate_mbit: float
    delay_ms: float
    ranks_per_host: int


def split_net(name: str) -> Links:
    """Reads the name of a network: "100d20x2" has links of 100 Mbit/s, a round trip of 40 ms and 2 ranks a host."""
    link, _, ranks = name.partition("x")
    rate, _, delay = link.partition("d")
    return Links(float(rate), float(delay or 0), int(ranks or 1))


def hosts_of(name: str, size: int) -> int:
    """Number of hosts of `size` ranks on a network; 0 if the ranks do not fill several hosts."""
    per_host = split_net(name).ranks_per_host
    return size // per_host if size % per_host == 0 and size > per_host else 0


@contextlib.contextmanager
def network(name: str, size: int, *, strict: bool = True, burst_ms: float | None = None) -> Iterator[netns.Net | None]:
    """Yields the network `name`: None for LOOPBACK, else namespaces whose rate has been checked with iperf3.

    Names are LOOPBACK, UNSHAPED, or links in the form of split_net(). A link off its rate is an error after three
    tries, or a warning if not `strict`; links with a delay are not checked. `burst_ms`: bytes that an idle link passes
    at once, in milliseconds of its rate; None: netns.BURST_BYTES.
    """
    if name == LOOPBACK:
        yield None
        return
    if name == UNSHAPED:
        with netns.Net(size) as net:
            yield net
        return
    links = split_net(name)
    burst = netns.BURST_BYTES
    if burst_ms is not None:
        burst = max(int(links.rate_mbit * 1e6 / 8 * burst_ms / 1e3), 2 * netns.FRAME_BYTES)
    with netns.Net(hosts_of(name, size), netns.LinkSpec(links.rate_mbit, burst, delay_ms=links.delay_ms)) as net:
        # One connection of iperf3 needs longer than the check to fill a long link.
        if links.delay_ms == 0:
            _check_rate(net, strict)
        yield net


def _check_rate(net: netns.Net, strict: bool) -> None:
    for left in (2, 1, 0):
        try:
            netns_check.check_rate(net)
            return
        except netns.NetnsError as error:
            if not strict or left == 0:
                if strict:
                    raise
                say(str(error))
                return


# ---- command line --------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """Command line of every benchmark."""

    quick: bool
    nets: tuple[str, ...]
    ranks: tuple[int, ...]
    systems: tuple[str, ...]
    horovod_python: str | None
    more: dict[str, tuple[str, ...]] = field(default_factory=dict)  # choices of this benchmark alone


def horovod_python() -> str | None:
    """Path of the interpreter of benchmarks/baselines/horovod.sh, by $BENCH_HOROVOD_ENV or in its default place."""
    folder = os.environ.get("BENCH_HOROVOD_ENV") or str(Path.home() / ".cache/sirtaki-bench/horovod")
    python = Path(folder) / "bin" / "python"
    return str(python) if python.is_file() else None


def parse(
    name: str,
    text: str,
    nets: Sequence[str],
    ranks: Sequence[int],
    systems: Sequence[str],
    *,
    defaults: Mapping[str, str] | None = None,
    **more: Sequence[str],
) -> tuple[Options, Store]:
    """Reads the command line; prints the systems and networks that are left out, with the reason.

    `more`: further lists of choices, each an argument. `defaults`: those of lists that are not chosen whole.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=text)
    parser.add_argument("--quick", action="store_true", help="a smoke run: few pairs, few sizes")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted run")
    chosen_nets = (defaults or {}).get("nets", ",".join(nets))
    parser.add_argument("--nets", default=chosen_nets, help=f"of {','.join(nets)}")
    parser.add_argument("--ranks", default=",".join(map(str, ranks)))
    parser.add_argument("--systems", default=",".join(systems), help=f"of {','.join(systems)}")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for result files")
    for choice, values in more.items():
        default = (defaults or {}).get(choice, ",".join(values))
        parser.add_argument(f"--{choice}", default=default, help=f"of {','.join(values)}")
    arguments = parser.parse_args()
    for choice, values in more.items():
        unknown = [value for value in getattr(arguments, choice).split(",") if value and value not in values]
        if unknown:
            parser.error(f"--{choice} has {', '.join(unknown)}, which is none of {', '.join(values)}")
    chosen = [net for net in arguments.nets.split(",") if net]
    reason = netns.unavailable_reason()
    if reason is not None and any(net != LOOPBACK for net in chosen):
        say(f"shaped links are left out: {reason}")
        chosen = [net for net in chosen if net == LOOPBACK]
    wanted = [system for system in arguments.systems.split(",") if system]
    python = horovod_python()
    if "horovod" in wanted and python is None:
        say("Horovod is left out: build it with benchmarks/baselines/horovod.sh (10 minutes)")
        wanted.remove("horovod")
    command = " ".join(["python", "-m", f"benchmarks.{name}", *(a for a in sys.argv[1:] if a != "--resume")])
    store = Store(name, command, folder=arguments.results, resume=arguments.resume)
    warning = load_warning(os.cpu_count() or 1, os.getloadavg()[0])
    if warning:
        say(warning)
    numbers = tuple(int(size) for size in arguments.ranks.split(",") if size)
    picked = {choice: tuple(value for value in getattr(arguments, choice).split(",") if value) for choice in more}
    return Options(arguments.quick, tuple(chosen), numbers, tuple(wanted), python, picked), store


_BEGIN = time.monotonic()


def say(text: str) -> None:
    """Prints a line of progress."""
    print(f"[{time.monotonic() - _BEGIN:6.1f} s] {text}", file=sys.stderr, flush=True)


def run(main: Callable[[], int]) -> int:
    """Runs a benchmark; errors and Ctrl-C end it in order and remove namespaces and workers."""
    try:
        with netns.unwinding_on_signals():
            return main()
    except (GroupError, netns.NetnsError) as error:
        say(f"ended by an error; what is finished is kept, --resume goes on\n{error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; what is finished is kept, --resume goes on")
        return 130


def finish(
    store: Store,
    rows: Sequence[Row],
    plot: Callable[[Path, Sequence[Row]], Path | None] | None = None,
    unprinted: Collection[str] = (),
) -> int:
    """Writes the result file and its plot, if it has one, and prints the table; returns 0, whatever the verdicts.

    `unprinted`: metrics that are in the file only.
    """
    path = store.finish(rows)
    print(table([row for row in rows if row.metric not in unprinted]))
    missed = [row for row in rows if row.met is False]
    judged = [row for row in rows if row.met is not None]
    print(f"\n{len(judged) - len(missed)} of {len(judged)} targets met; {path}")
    drawn = None if plot is None else plot(path.with_suffix(".svg"), rows)
    if drawn is not None:
        print(f"plot: {drawn}")
    return 0
