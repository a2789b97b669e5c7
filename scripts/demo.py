"""`make demo`: trains a CNN on Fashion-MNIST on 4 ranks, and once more with plain torch in one process.

If the caller is root, the ranks run in network namespaces of their own, joined by links of 100 Mbit/s; otherwise they
communicate over loopback. Both trainings see the same batches, so their accuracy must agree; the exit status is 1 if it
does not. The same training follows with compression=auto, then with local_updates=auto in addition; the accuracy of
both must be near. DDP and PowerSGD of torch train for some seconds on the same links and batches; one table shows the
training loss of all from the first step on, and decides nothing. A part of the training is timed with each way
of waiting for gradients (sync=), whose parameters must be equal. Finally a rank of an elastic training is killed, which
the others must outlive (demo_elastic.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from demo_elastic import Story  # noqa: E402

from benchmarks import netns  # noqa: E402

PYTHON = str(ROOT / ".venv/bin/python")
SIRTAKIRUN = str(ROOT / ".venv/bin/sirtakirun")
PAGE = ROOT / "build/demo.html"
PROGRAM = str(ROOT / "examples/demo_fashion_mnist.py")
OVERLAP = str(ROOT / "examples/demo_overlap.py")
BASELINES = str(ROOT / "examples/demo_baselines.py")
ELASTIC = str(ROOT / "examples/elastic_mnist.py")
LIVE = re.compile(r"^(?:\[[^\]]*\]\s?)?(  epoch \d+  step +(\d+)/(\d+) .*)$")
QUIET_SECONDS = 5.0
TOLERANCE = 0.02
COMPRESSED_TOLERANCE = 0.03
OVERLAP_SECONDS = 3  # of each way of waiting
BUSY_LOAD = 1.5  # processes per core at the start, from which on timings say little
TABLE_SECONDS = (1, 2, 5, 10, 15)


class Screen:
    """Shows the lines of a child; progress lines overwrite one another on a terminal and are thinned out elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._open = False
        self._last = time.monotonic()

    def line(self, text: str) -> None:
        """Takes one line of output."""
        match = LIVE.match(text)
        if match is None:
            self._write(text + "\n")
            return
        done = match[2] == match[3]
        if self._terminal:
            sys.stdout.write(f"\r\033[K{match[1]}" + ("\n" if done else ""))
            self._open = not done
        elif done or time.monotonic() - self._last > QUIET_SECONDS:
            self._last = time.monotonic()
            sys.stdout.write(match[1] + "\n")
        sys.stdout.flush()

    def _write(self, text: str) -> None:
        sys.stdout.write(("\n" if self._open else "") + text)
        self._open = False
        sys.stdout.flush()


def follow(command: Sequence[str], take: Callable[[str], None], environment: dict[str, str] | None = None) -> int:
    """Runs a child, passes each line of its output to `take`, and returns its exit status.

    It ends the child before it passes an interruption on.
    """
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "SIRTAKI_REPORT_END": "false", **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert child.stdout is not None
    try:
        for line in child.stdout:
            take(line.rstrip("\n"))
        return child.wait()
    except BaseException:
        # Ctrl-C has reached the child, too; it gets time to end its ranks.
        child.terminate()
        try:
            child.wait(timeout=6)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise


def run(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    """Runs a child with its output on the screen, which must succeed."""
    status = follow(command, Screen().line, environment)
    if status != 0:
        raise SystemExit(f"demo: '{' '.join(command)}' ended with status {status}")


@contextlib.contextmanager
def network(args: argparse.Namespace) -> Iterator[netns.Net | None]:
    """Yields the emulated network, or None for loopback; prints which one."""
    reason = "asked for" if args.loopback else netns.unavailable_reason()
    if reason is None:
        with contextlib.ExitStack() as stack:
            net = netns.Net(args.ranks, netns.LinkSpec(rate_mbit=args.rate))
            try:
                stack.enter_context(net)
            except netns.NetnsError as error:
                reason = str(error)
            else:
                print(f"network: {args.ranks} namespaces, each behind a link of {args.rate:g} Mbit/s both ways")
                yield net
                return
    print(f"network: loopback, not slowed down ({reason})")
    yield None


def train_plain(args: argparse.Namespace, report: Path) -> dict[str, Any]:
    """Trains in one process, without the runtime."""
    print(f"\nplain torch, one process, {args.epochs} epochs", flush=True)
    run([PYTHON, PROGRAM, "--plain", "--epochs", str(args.epochs), "--live", "0.5", "--report", str(report)])
    return json.loads(report.read_text())


def on_ranks(
    args: argparse.Namespace,
    net: netns.Net | None,
    program: Sequence[str],
    options: Sequence[str] = (),
    environment: dict[str, str] | None = None,
) -> None:
    """Runs a program on all ranks. `options`: options for sirtakirun."""
    environment = environment or {}
    threads = ["--threads", str(max(1, (os.cpu_count() or 1) // args.ranks))]
    launch = [SIRTAKIRUN, "-np", str(args.ranks), *options]
    if net is None:
        run([*launch, PYTHON, *program, *threads], environment)
        return
    launch += ["--rendezvous-address", net.address(netns.LAUNCHER)]
    exec_in_node = [PYTHON, "-m", "benchmarks.netns", "exec", "--", PYTHON]
    run(net.command(netns.LAUNCHER, [*launch, *exec_in_node, *program, *threads]), {**net.environment(), **environment})


@dataclass
class Ranks:
    """Reports of the trainings on several ranks."""

    training: dict[str, Any]
    links: list[netns.NodeBytes]  # after the training; empty on loopback
    compressed: dict[str, Any]  # the training with compression=auto
    local: dict[str, Any]  # the training with local_updates=auto in addition
    ddp: dict[str, Any]  # DDP of torch, for some seconds
    powersgd: dict[str, Any]  # PowerSGD of rank 4, for some seconds
    overlap: dict[str, dict[str, Any]]  # reports by value of sync


def train_ranks(args: argparse.Namespace, folder: Path) -> Ranks:
    """Runs the training on several ranks, dense and compressed, and parts of it with torch and each way of waiting."""
    names = ("ranks", "compressed", "local", "ddp", "powersgd", "overlap")
    report, compressed, local, ddp, powersgd, overlap = (folder / f"{name}.json" for name in names)
    print()
    with netns.unwinding_on_signals(), network(args) as net:
        print(f"sirtaki, {args.ranks} ranks, {args.epochs} epochs", flush=True)
        training = [PROGRAM, "--epochs", str(args.epochs), "--live", "0.5", "--report"]
        on_ranks(args, net, [*training, str(report)])
        links = net.bytes() if net is not None else []
        print("the same with compression=auto", flush=True)
        run_file = folder / "run.json"
        on_ranks(args, net, [*training, str(compressed)], ["--compression", "auto", "--report-file", str(run_file)])
        PAGE.parent.mkdir(exist_ok=True)
        run([PYTHON, "-m", "sirtaki", "report", str(run_file), "-o", str(PAGE)])
        print("the same with local_updates=auto besides", flush=True)
        on_ranks(args, net, [*training, str(local)], ["--local-updates", "auto", "--compression", "auto"])
        print(f"torch on the same links and batches: DDP for {args.seconds:g} s", flush=True)
        train_torch(args, net, "ddp", ddp)
        print(f"torch on the same links and batches: PowerSGD of rank 4 for {args.seconds:g} s", flush=True)
        train_torch(args, net, "powersgd", powersgd)
        print('sirtaki, a stretch of the same with sync="step", "backward" and "forward" in turns', flush=True)
        on_ranks(args, net, [OVERLAP, "--seconds", str(OVERLAP_SECONDS), "--report", str(overlap)])
    read = [json.loads(path.read_text()) for path in (report, compressed, local, ddp, powersgd, overlap)]
    return Ranks(read[0], links, *read[1:])


def train_torch(args: argparse.Namespace, net: netns.Net | None, system: str, report: Path) -> None:
    """Trains for some seconds with a baseline on Gloo."""
    with tempfile.TemporaryDirectory(prefix="sirtaki-demo-meet-") as meet:
        program = [BASELINES, "--system", system, "--meet", meet, "--seconds", str(args.seconds)]
        interface = "lo" if net is None else netns.INTERFACE
        on_ranks(args, net, [*program, "--report", str(report)], environment={"GLOO_SOCKET_IFNAME": interface})
    figures = json.loads(report.read_text())
    seconds, loss, _ = figures["curve"][-1]
    print(f"  {figures['steps']} steps in {seconds:.1f} s, loss {loss:.4f}", flush=True)


def train_elastic() -> bool:
    """Trains on the ranks of one host, of which one is killed; returns true if the training outlived the loss."""
    print("\nelastic: the same kind of training, in which a rank is killed", flush=True)
    story = Story()
    program = [PYTHON, ELASTIC, "--epochs", "1000", "--steps", str(story.STEPS)]
    try:
        status = follow([SIRTAKIRUN, "-np", str(story.RANKS), "--elastic", f"2:{story.RANKS}", *program], story.tell)
    finally:
        story.end()
    print(f"  {story.verdict(status)}")
    return story.outlived(status)


def rows(plain: dict[str, Any], ranks: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields the lines of the comparison."""
    yield "", "plain torch", "sirtaki"
    yield "processes", "1", str(ranks["ranks"])
    for number, (one, many) in enumerate(zip(plain["epochs"], ranks["epochs"], strict=True), 1):
        yield f"epoch {number}: loss", f"{one['loss']:.4f}", f"{many['loss']:.4f}"
        yield f"epoch {number}: test accuracy", f"{one['accuracy']:.2%}", f"{many['accuracy']:.2%}"
    for label, key in (("seconds of training", "seconds"), ("of these exposed communication", "exposed_seconds")):
        yield label, f"{total(plain, key):.1f}", f"{total(ranks, key):.1f}"
    yield "samples/s", f"{samples_per_second(plain):,.0f}", f"{samples_per_second(ranks):,.0f}"


def total(report: dict[str, Any], key: str) -> float:
    """Returns the sum of a figure over the epochs."""
    return sum(epoch[key] for epoch in report["epochs"])


def steps_of(report: dict[str, Any]) -> int:
    """Returns the number of steps of the whole training."""
    return report["steps_per_epoch"] * len(report["epochs"])


def samples_per_second(report: dict[str, Any]) -> float:
    """Returns the images of all ranks divided by the time of training."""
    return steps_of(report) * report["global_batch"] / total(report, "seconds")


def print_report(plain: dict[str, Any], ranks: dict[str, Any], links: list[netns.NodeBytes], rate: float) -> None:
    """Prints accuracy, time and bytes of both trainings."""
    print("\nreport")
    for label, one, many in rows(plain, ranks):
        print(f"  {label:<32}{one:>14}{many:>14}")
    size, steps = ranks["ranks"], steps_of(ranks)
    least = 2 * (size - 1) / size * 4 * ranks["parameters"] * steps
    share = total(ranks, "exposed_seconds") / total(ranks, "seconds")
    print(f"  time in communication: {share:.0%} of the training is spent waiting for it")
    print(f"  bytes each rank must send:  {least / 1e6:8.1f} MB (gradients of {steps} steps, dense float32)")
    if links:
        sent = sum(link.sent for link in links) / len(links)
        ideal = least / (rate * 1e6 / 8 * netns.PAYLOAD_SHARE)
        print(f"  bytes on each rank's link:  {sent / 1e6:8.1f} MB sent, Ethernet, TCP and control included")
        print(f"  the link alone needs        {ideal:8.1f} s for them at {rate:g} Mbit/s")
    stats = ranks["stats"]
    print(f"  gradients of rank 0:        {stats['streams.raw_bytes'] / 1e6:8.1f} MB, compression off")
    print(f"  payload sent by rank 0:     {sum(p['bytes_sent'] for p in stats['peers']) / 1e6:8.1f} MB to its peers")


def step_ms(report: dict[str, Any]) -> float:
    """Returns the milliseconds per step."""
    return 1e3 * total(report, "seconds") / steps_of(report)


def compressed_line(dense: dict[str, Any], auto: dict[str, Any]) -> str:
    """Compares the training with compression=auto to the dense one: step time, ratio, accuracy."""
    before, after = step_ms(dense), step_ms(auto)
    ratio = auto["stats"]["streams.raw_bytes"] / max(1, auto["stats"]["streams.wire_bytes"])
    accuracy = [report["epochs"][-1]["accuracy"] for report in (dense, auto)]
    return (
        f"{after:.1f} ms a step, dense {before:.1f} ms ({before / after:.2f}x); "
        f"gradients in 1/{ratio:.1f} of the bytes; accuracy {accuracy[1]:.2%}, dense {accuracy[0]:.2%}"
    )


def local_line(dense: dict[str, Any], local: dict[str, Any]) -> str:
    """Compares the training with local updates to the dense one: step time, bytes, accuracy, decisions."""
    before, after = step_ms(dense), step_ms(local)
    sent = [sum(p["bytes_sent"] for p in report["stats"]["peers"]) for report in (dense, local)]
    accuracy = [report["epochs"][-1]["accuracy"] for report in (dense, local)]
    how, fewer = local["local"], sent[0] / max(1, sent[1])
    return (
        f"{after:.1f} ms a step, dense {before:.1f} ms ({before / after:.2f}x); 1/{fewer:.1f} of the bytes; "
        f"accuracy {accuracy[1]:.2%}, dense {accuracy[0]:.2%}; at the end {how['mode']}, {how['interval']} steps "
        f"between merges, {how['delay']} of them while one is on its way ({how['reason']})"
    )


def print_near(title: str, line: str, plain: dict[str, Any], other: dict[str, Any]) -> bool:
    """Prints the line; returns true if the accuracy is near that of plain training."""
    print(f"\n{title}: {line}")
    lost = plain["epochs"][-1]["accuracy"] - other["epochs"][-1]["accuracy"]
    if lost > COMPRESSED_TOLERANCE:
        print(f"  accuracy: {lost:.2%} below plain training: something is wrong")
    return lost <= COMPRESSED_TOLERANCE


def point_at(curve: Sequence[Sequence[float]], seconds: float) -> Sequence[float] | None:
    """Returns the point of the last step that had ended by then; None before the first and after the last step."""
    if seconds > curve[-1][0]:
        return None
    return next((point for point in reversed(curve) if point[0] <= seconds), None)


def seconds_to(curve: Sequence[Sequence[float]], loss: float) -> float | None:
    """Returns the seconds until the loss is that low for the first time; None if it never is."""
    return next((when for when, found, _ in curve if found <= loss), None)


def print_race(ranks: Ranks) -> None:
    """Prints steps and training loss of all methods from the first step on, and the seconds to the last loss of DDP."""
    named = {
        "DDP": ranks.ddp,
        "PowerSGD rank 4": ranks.powersgd,
        "compression=auto": ranks.compressed,
        "both auto": ranks.local,
    }
    curves = {name: report["curve"] for name, report in named.items()}
    print("\nafter the first seconds of training: steps, and the loss (mean over the ranks and the last 20 steps)")
    print(f"  {'':<18}" + "".join(f"{f'{seconds} s':>13}" for seconds in TABLE_SECONDS))
    for name, curve in curves.items():
        points = [point_at(curve, seconds) for seconds in TABLE_SECONDS]
        cells = ("-" if point is None else f"{point[2]:.0f} {point[1]:7.3f}" for point in points)
        print(f"  {name:<18}" + "".join(f"{cell:>13}" for cell in cells))
    target = curves["DDP"][-1][1]
    times = {name: seconds_to(curve, target) for name, curve in curves.items()}
    told = (
        f"{name} " + (f"not in {curves[name][-1][0]:.1f}" if when is None else f"{when:.1f}")
        for name, when in times.items()
    )
    print(f"  seconds to loss {target:.3f}: " + ", ".join(told))


def busy_line() -> str | None:
    """Returns a warning if other programs occupy the cores; None if they do not."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= BUSY_LOAD * cores:
        return None
    return f"the machine is busy (load average {load:.1f} on {cores} cores): results are then not comparable"


def print_overlap(overlap: dict[str, dict[str, Any]]) -> bool:
    """Prints the three ways of waiting for gradients side by side; returns true if their parameters agree."""
    print("\nsync=            samples/s   exposed communication")
    for sync, figures in overlap.items():
        share = figures["exposed_seconds"] / figures["seconds"]
        exposed = f"{1e3 * figures['exposed_seconds'] / figures['steps']:.1f} ms a step, {share:.0%}"
        print(f"  {sync:<12}{figures['samples_per_second']:>13,.0f}   {exposed}")
    gain = overlap["forward"]["samples_per_second"] / overlap["step"]["samples_per_second"]
    print(f'  gain of overlap with the next forward pass: {gain:.2f}x over sync="step"')
    if len({figures["checksum"] for figures in overlap.values()}) > 1:
        print("  parameters: not the same in all three: something is wrong")
        return False
    print(f"  parameters: the same in all three after {overlap['step']['steps']} timed steps")
    return True


def verdict(plain: dict[str, Any], ranks: dict[str, Any]) -> int:
    """Compares the final accuracies; returns the exit status."""
    one, many = (report["epochs"][-1]["accuracy"] for report in (plain, ranks))
    if many < one - TOLERANCE:
        print(f"  accuracy: {one - many:.2%} below plain training: something is wrong")
        return 1
    print(f"  accuracy: within {abs(one - many):.2%} of plain training on the same batches")
    return 0


def show(args: argparse.Namespace) -> int:
    """Trains, and prints what there is to say of it; returns the exit status."""
    busy = busy_line()
    if busy is not None:
        print(busy, flush=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sirtaki-demo-") as folder:
        plain = train_plain(args, Path(folder) / "plain.json")
        ranks = train_ranks(args, Path(folder))
    print_report(plain, ranks.training, ranks.links, args.rate)
    status = verdict(plain, ranks.training)
    dense, compressed, local = ranks.training, ranks.compressed, ranks.local
    if not print_near("compression=auto", compressed_line(dense, compressed), plain, compressed):
        status = 1
    if not print_near("local_updates=auto, compression=auto", local_line(dense, local), plain, local):
        status = 1
    print_race(ranks)
    if busy is not None:
        print(f"  {busy}")
    if not print_overlap(ranks.overlap):
        status = 1
    if not train_elastic():
        status = 1
    print(f"  the demo took {(time.monotonic() - begin) / 60:.1f} minutes")
    return status


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rate", type=float, default=100.0, help="Mbit/s of each rank's link")
    parser.add_argument("--loopback", action="store_true", help="no namespaces")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each of DDP and PowerSGD")
    args = parser.parse_args()
    try:
        return show(args)
    except KeyboardInterrupt:
        print("\ndemo: interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main())
