"""Elastic jobs with ranks that cannot connect to each other while the coordinator hears all of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from elastic_hosts import await_size, command, stop, with_false_ssh
from launch_support import Run, running
from ssh_hosts import Hosts, run, unavailable_reason

# In the namespace of the launcher the coordinator has the first port, and the data port of rank 0 follows.
FIRST, LAST = 21800, 21850
ALL, BUT_COORDINATOR = f"{FIRST}-{LAST}", f"{FIRST + 1}-{LAST}"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Returns two machines without ssh between them."""
    if reason := unavailable_reason():
        pytest.skip(reason)
    with Hosts.of_a_test(tmp_path_factory.mktemp("hosts"), ssh=False) as made:
        yield made


@contextmanager
def training(hosts: Hosts, folder: Path) -> Iterator[Run]:
    """Trains with one rank near the coordinator and two on the other machine."""
    where = ("-H", f"{hosts.near_address}:1,{hosts.far_address}:2", "--port-range", f"{FIRST}-{LAST}")
    limits = ("--elastic", "1:", "--elastic-silence", "1s", "--control-connect-timeout", "2s")
    env = with_false_ssh(folder, hosts.inside(hosts.far))
    prefix = hosts.inside(hosts.near)
    with running(*where, *limits, *command(folder), prefix=prefix, env=env, stderr=subprocess.STDOUT) as job:
        yield job


@contextmanager
def cut(hosts: Hosts, near: str, far: str) -> Iterator[None]:
    """Makes both machines refuse packets of each other from and to these ports, so that connections break at once."""
    machines = {hosts.near: (near, far), hosts.far: (far, near)}
    for name, (own, others) in machines.items():
        rules = "".join(
            f'iifname != "lo" tcp {which} {ports} reject with tcp reset; '
            for which, ports in (("dport", own), ("sport", others))
        )
        file = hosts.folder / f"cut.{name}.nft"
        file.write_text(f"table inet cut {{\n chain in {{ type filter hook input priority 0; {rules}}}\n}}\n")
        run(*hosts.inside(name), "nft", "-f", str(file))
    try:
        yield
    finally:
        for name in machines:
            run(*hosts.inside(name), "nft", "delete", "table", "inet", "cut")


def test_a_rank_that_cannot_connect_to_the_others_is_given_up(hosts: Hosts, tmp_path: Path) -> None:
    with training(hosts, tmp_path) as job:
        seats = await_size(job, 3)
        with cut(hosts, BUT_COORDINATOR, ALL):
            _, before = job.read_until(rf"IN 1 {seats[1][0]} 0 2 ")
            said = "".join(before) + stop(job, tmp_path).out
    assert re.search(rf"DONE 1 {seats[1][0]} 0 2 ", said), said
    assert re.search(rf"DONE 2 {seats[2][0]} 1 2 ", said), said
    (line,) = re.findall(r"sirtakirun: (.* go on as epoch \d+)\n", said)
    assert re.match(r"rank 0 had no data connection with rank \d in two epochs in a row, although", line), line
    assert "firewall" in line, line
    assert "net.interface" in line, line
    assert line.count("(host ") >= 2, line


def test_ranks_whose_connection_is_cut_once_make_another_one(hosts: Hosts, tmp_path: Path) -> None:
    with training(hosts, tmp_path) as job:
        seats = await_size(job, 3)
        sockets = run(*hosts.inside(hosts.far), "ss", "-tnH", "state", "established")
        ports = re.findall(rf"{hosts.far_address}:(\d+)\s+{hosts.near_address}:{FIRST + 1}\b", sockets)
        assert len(ports) == 2, sockets
        with cut(hosts, ports[0], ports[0]):
            assert await_size(job, 3) == seats
            done = stop(job, tmp_path)
    assert "given up" not in done.out, done.out
