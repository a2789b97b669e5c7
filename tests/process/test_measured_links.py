"""`sirtakirun --check` measures the links between hosts: over ssh, through a shaped link, with ports closed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launch_support import PYTHON, Outcome, Run, launch, launcher_path, running, wait_until
from ssh_hosts import Hosts, run, unavailable_reason

REASON = unavailable_reason()
needs_hosts = pytest.mark.skipif(REASON is not None, reason=REASON or "")

LIMIT = 5.0
READING = re.compile(
    r"^  (\S+) > (\S+) +round trip ([\d.]+) ms, there ([\d.]+) ([MG])bit/s, back ([\d.]+) ([MG])bit/s", re.MULTILINE
)
MBIT = {"M": 1.0, "G": 1000.0}
PAYLOAD_PART = 1448 / 1514


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with Hosts.of_a_test(tmp_path_factory.mktemp("hosts")) as made:
        yield made


def arguments(hosts: Hosts, *options: str) -> tuple[str, ...]:
    # Three ranks on one of the hosts: only one of them measures.
    return ("-H", f"{hosts.near_address}:3,{hosts.far_address}:1", *hosts.arguments(), *options, "--check")


def check(hosts: Hosts, *options: str) -> Outcome:
    before = set(hosts.pids(hosts.far))
    done = launch(*arguments(hosts, *options), prefix=hosts.inside(hosts.near), timeout=60)
    wait_until(lambda: set(hosts.pids(hosts.far)) <= before, LIMIT, "nothing is left on the far host")
    return done


@contextmanager
def measuring(hosts: Hosts, *options: str) -> Iterator[Run]:
    """Yields a check during its measurement, which takes seconds on this link."""
    with hosts.shaped(1, 1), running(*arguments(hosts, *options), prefix=hosts.inside(hosts.near)) as job:
        assert job.process.stderr is not None
        said = bytearray()
        os.set_blocking(job.process.stderr.fileno(), False)
        wait_until(
            lambda: b"measuring the link" in said.__iadd__(job.process.stderr.read() or b""), 30, "the measurement"
        )
        os.set_blocking(job.process.stderr.fileno(), True)
        yield job


def gains(page: str) -> dict[str, float]:
    """Returns the gains of a page for 25 M parameters, by option."""
    (line,) = re.findall(r"^ +25 M parameters, +250 ms a step: (.*)$", page, re.MULTILINE)
    return {option: float(gain) for gain, option in re.findall(r"([\d.]+)x with (--[^,]*)", line)}


def estimated(page: str) -> dict[str, float]:
    """Returns the gains that the command on the page prints for such a model."""
    (command,) = re.findall(r"your model: sirtaki estimate MODEL.py (.*)$", page, re.MULTILINE)
    model = ("--parameters", "25M", "--compute", "250ms", "--json")
    out = run(PYTHON, "-m", "sirtaki", "estimate", *command.split(), *model)
    rows = {row["option"]: row["speedup"] for row in json.loads(out)["methods"]}
    return {option: rows[option] for option in gains(page)}


@needs_hosts
def test_both_ways_of_a_shaped_link_are_measured_and_advised_on(hosts: Hosts) -> None:
    with hosts.shaped(100, 40):
        done = check(hosts)
    assert done.code == 0, done.err
    found = READING.findall(done.out)
    assert len(found) == 1, done.out
    near, far, round_trip, there, there_unit, back, back_unit = found[0]
    assert (near, far) == (hosts.near_address, hosts.far_address)
    assert 0 < float(round_trip) < 500
    assert float(there) * MBIT[there_unit] == pytest.approx(100 * PAYLOAD_PART, rel=0.25)
    assert float(back) * MBIT[back_unit] == pytest.approx(40 * PAYLOAD_PART, rel=0.25)
    # Both time the codecs anew, on a machine with other work.
    assert gains(done.out) == pytest.approx(estimated(done.out), rel=0.25)
    assert f"measuring the link between {near} and {far} (1 of 1)" in done.err
    assert done.out.endswith("All is well.\n")


@needs_hosts
def test_a_distant_host_is_far_and_not_slow(hosts: Hosts) -> None:
    with hosts.shaped(100, 100), hosts.delayed(20):
        done = check(hosts)
    assert done.code == 0, done.err
    ((_, _, round_trip, there, there_unit, back, back_unit),) = READING.findall(done.out)
    assert 40 <= float(round_trip) < 80
    for mbit in (float(there) * MBIT[there_unit], float(back) * MBIT[back_unit]):
        # The relay of delays needs processors, which other tests need, too.
        assert 0.3 <= mbit / (100 * PAYLOAD_PART) < 1.25, done.out


@needs_hosts
def test_closed_ports_between_hosts_are_named_with_the_fix(hosts: Hosts) -> None:
    # The coordinator has the first port; the ports of the ranks follow.
    rules = "table inet closed {\n chain in { type filter hook input priority 0; tcp dport 21801-21810 drop; }\n}\n"
    file = hosts.folder / "closed.nft"
    file.write_text(rules)
    for name in (hosts.near, hosts.far):
        run(*hosts.inside(name), "nft", "-f", str(file))
    try:
        done = check(hosts, "--port-range", "21800-21810", "--control-connect-timeout", "3s")
    finally:
        for name in (hosts.near, hosts.far):
            run(*hosts.inside(name), "nft", "delete", "table", "inet", "closed")
    assert done.code == 1
    assert "the links between the hosts cannot be measured: " in done.err
    # Either end may be the first to give up.
    assert f"rank 0 is on {hosts.near_address}, rank 1 is on {hosts.far_address}" in done.err
    assert "no firewall is between the hosts" in done.err
    assert "All is well." not in done.out
    assert done.seconds < 30


@needs_hosts
def test_ctrl_c_ends_the_measurement_on_both_hosts(hosts: Hosts) -> None:
    with measuring(hosts) as job:
        job.process.send_signal(signal.SIGINT)
        assert job.finish().code == 130
        wait_until(lambda: not job.marked() and not hosts.pids(hosts.far), LIMIT, "both hosts are empty")


@needs_hosts
def test_a_host_that_falls_silent_is_named(hosts: Hosts) -> None:
    with measuring(hosts, "--control-heartbeat-interval", "100ms", "--control-heartbeat-timeout", "1s") as job:
        ranks = [pid for pid, command in job.marked().items() if "--measure-links" in command]
        (far,) = set(ranks) & set(hosts.pids(hosts.far))
        os.kill(far, signal.SIGSTOP)
        done = job.finish()
        assert done.code == 1
        assert f"the first to fail was rank 1 on {hosts.far_address}: has been silent for" in done.err
        assert "the links between the hosts cannot be measured: " in done.err
        wait_until(lambda: not job.marked() and not hosts.pids(hosts.far), LIMIT, "both hosts are empty")


def test_every_host_is_measured_with_its_neighbours() -> None:
    done = launch("-np", "3", "--no-tag-output", launcher_path(), "--measure-links", "a", "b", "c", timeout=60)
    assert done.code == 0, done.err
    assert [row[:2] for row in READING.findall(done.out)] == [("a", "b"), ("b", "c"), ("a", "c")]
    assert done.out.count("(slowest)") == 1


def test_one_host_has_no_link_to_measure() -> None:
    done = launch("-np", "2", "--check")
    assert done.code == 0, done.err
    assert "none: all ranks are on one host, so nothing is measured" in done.out
    assert done.out.endswith("All is well.\n")
