"""Command line of benchmarks.netns.

python -m benchmarks.netns run --nodes 4 --rate 100 -- COMMAND   # in the launcher's namespace
python -m benchmarks.netns exec -- COMMAND                       # in the node of this rank
python -m benchmarks.netns exec --ns NAME -- COMMAND
python -m benchmarks.netns bytes --net ID | check --nodes 2 --rate 200 | gc | available
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict

from benchmarks import netns
from benchmarks.network import netns_check


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.netns", description="Shaped network namespaces on one machine."
    )
    actions = parser.add_subparsers(dest="action", required=True)

    run = actions.add_parser("run", help="make a network, run a command in the launcher's node")
    check = actions.add_parser("check", help="make a network and compare its rate with iperf3")
    for action in (run, check):
        action.add_argument("--nodes", type=int, default=2, help="namespaces (default 2)")
        action.add_argument("--rate", type=float, default=None, help="Mbit/s each way")
        action.add_argument("--drop", type=float, default=0.0, help="share of frames lost")
        action.add_argument("--delay", type=float, default=0.0, help="one-way delay in ms")
    run.add_argument("--node", type=int, default=None, help="run there, not at the launcher")

    enter = actions.add_parser("exec", help="run a command in a namespace")
    enter.add_argument("--ns", default=None, help="its name; default: by rank")
    enter.add_argument("--ranks-per-node", type=int, default=1)
    for action in (run, enter):
        action.add_argument("command", nargs=argparse.REMAINDER)

    counters = actions.add_parser("bytes", help="print the byte counters of a network as JSON")
    counters.add_argument("--net", default=os.environ.get(netns.ENV_NET), help="its id")
    actions.add_parser("gc", help="remove networks whose owner is gone")
    actions.add_parser("available", help="say whether namespaces can be made (exit status)")
    return parser


def _command(arguments: argparse.Namespace) -> list[str]:
    command: list[str] = arguments.command
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        raise netns.NetnsError("no command given; put it after --")
    return command


def _link(arguments: argparse.Namespace) -> netns.LinkSpec:
    return netns.LinkSpec(rate_mbit=arguments.rate, drop_share=arguments.drop, delay_ms=arguments.delay)


def _run(arguments: argparse.Namespace) -> int:
    command = _command(arguments)
    where = netns.LAUNCHER if arguments.node is None else arguments.node
    with netns.unwinding_on_signals(), netns.Net(arguments.nodes, _link(arguments)) as net:
        child = subprocess.Popen(net.command(where, command), env={**os.environ, **net.environment()})
        try:
            status = child.wait()
        except BaseException:
            # Ctrl-C has reached the child, too: it gets time to end its ranks before they are killed.
            child.terminate()
            try:
                child.wait(timeout=6)
            except subprocess.TimeoutExpired:
                child.kill()
            raise
    return status if status >= 0 else 128 - status


def _exec(arguments: argparse.Namespace) -> int:
    command = _command(arguments)
    name = arguments.ns or netns.namespace_from_environment(os.environ, arguments.ranks_per_node)
    netns.enter(name)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise netns.NetnsError(f"{command[0]}: {error.strerror}") from None


def _check(arguments: argparse.Namespace) -> int:
    with netns.unwinding_on_signals(), netns.Net(arguments.nodes, _link(arguments)) as net:
        if arguments.rate is not None:
            ratio = netns_check.check_rate(net)
            print(f"{arguments.rate:g} Mbit/s: {ratio:.4f} of the expected payload rate")
        print(f"round trip: {netns_check.measure_round_trip(net) * 1e3:.3f} ms")
    return 0


def _bytes(arguments: argparse.Namespace) -> int:
    if not arguments.net:
        raise netns.NetnsError(f"give --net (or set {netns.ENV_NET})")
    nodes = [
        int(name.rpartition("-r")[2]) for name in os.listdir(netns.NETNS_DIR) if name.startswith(arguments.net + "-r")
    ]
    print(json.dumps([asdict(netns.link_bytes(arguments.net, node)) for node in sorted(nodes)]))
    return 0


def _gc(_arguments: argparse.Namespace) -> int:
    for name in netns.collect_garbage():
        print(f"removed {name}")
    return 0


def _available(_arguments: argparse.Namespace) -> int:
    reason = netns.unavailable_reason()
    print(reason or "network namespaces can be made here")
    return 0 if reason is None else 1


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "exec": _exec,
    "check": _check,
    "bytes": _bytes,
    "gc": _gc,
    "available": _available,
}


def main(argv: list[str]) -> int:
    """Runs one action; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return _ACTIONS[arguments.action](arguments)
    except netns.NetnsError as error:
        print(f"netns: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
