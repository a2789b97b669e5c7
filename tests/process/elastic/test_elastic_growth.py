"""Elastic jobs that grow again: lost ranks are started again as other processes, and join the ones that went on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from launch_support import PYTHON, Outcome, Run, launch, running, warm
from test_elastic_plain import TRAIN as PLAIN_LOOP

# A fault "slot:start:place" kills that process of the slot there, "slot:start:place:stop" stops it, and
# "slot:start:place:hang" makes it wait for ever. At the place "waiting" it waits until the others admit it, which they
# do not before the next start of the slot. All processes of a slot but the first one end with code 3 if it "flaps", and
# call an operation too early if it "talks". If it "waits", the others come to the end without another commit when its
# second one is there. Else the program ends when all ranks are there. Processes of a slot that "fails" end with code 5
# after that. The place "wanted" is where a lost rank has come back and waits.
TRAIN = """
import os, signal, sys, threading
from pathlib import Path
import sirtaki
from sirtaki import _growth
from sirtaki.elastic import ObjectState, run
from sirtaki.objects import allgather_object

slot, full = int(os.environ["SIRTAKI_JOB_RANK"]), int(os.environ["SIRTAKI_JOB_SIZE"])
folder, faults = Path(sys.argv[1]), sys.argv[2].split(",")
start = len(list(folder.glob(f"{slot}.*"))) + 1
(folder / f"{slot}.{start}").touch()
pace = threading.Event()

def fault(place):
    if f"{slot}:{start}:{place}" in faults:
        os.kill(os.getpid(), signal.SIGKILL)
    if f"{slot}:{start}:{place}:stop" in faults:
        os.kill(os.getpid(), signal.SIGSTOP)
    if f"{slot}:{start}:{place}:hang" in faults:
        threading.Event().wait()

if f"{slot}:flaps" in faults and start > 1:
    sys.exit(3)
fault("start")
if f"{slot}:{start}:waiting:stop" in faults:
    signal.signal(signal.SIGALRM, lambda *_: fault("waiting"))
    signal.alarm(2)
sirtaki.init()
fault("joined")
if f"{slot}:{start}:quits" in faults:
    sirtaki.shutdown()
    sys.exit()
if f"{slot}:talks" in faults and start > 1:
    allgather_object(None)

def commit(state):
    if f"{slot}:{start}:wanted" in faults and sirtaki.size() < full:
        while not _growth.change_wanted():
            pace.wait(0.01)
        fault("wanted")
    stops = [f for f in faults if f.endswith("waiting:stop")]
    files = [folder / f"{stops[0][0]}.{int(stops[0][2]) + more}" for more in (0, 1)] if stops else []
    if not stops or all(allgather_object(not files[0].exists() or files[1].exists())):
        state.commit()

@run
def train(state):
    print("IN", slot, start, os.getpid(), state.step, sirtaki.rank(), sirtaki.size(), flush=True)
    while state.step < 6 or sirtaki.size() < full:
        pace.wait(0.01)
        fault(state.step)
        seen = allgather_object((state.step, state.total))
        assert len(set(seen)) == 1, seen
        state.total += len(seen)
        state.step += 1
        waits = [f for f in faults if f.endswith("waits")]
        if waits and (folder / f"{waits[0][0]}.2").exists():
            return
        if not waits or state.step < 6:
            commit(state)

state = ObjectState(step=0, total=0)
state.register_reset_callbacks([lambda: print("RESET", slot, sirtaki.rank(), sirtaki.size(), flush=True)])
train(state)
print("DONE", slot, start, os.getpid(), state.step, state.total, sirtaki.rank(), sirtaki.size(), flush=True)
sirtaki.shutdown()
if f"{slot}:fails" in faults:
    sys.exit(5)
"""


def train(np: int, least: int, faults: str, folder: Path, *options: str) -> Outcome:
    options = ("-np", str(np), "--elastic", f"{least}:{np}", "--elastic-silence", "3s", *options)
    return launch(*options, PYTHON, "-c", TRAIN, str(folder), faults, timeout=150)


def starts(done: Outcome) -> list[str]:
    return re.findall(r"rank (\d) is started again on localhost \(start (\d)\)", done.err)


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ("1:1:3", {0: 1, 1: 2, 2: 1}),
        ("0:1:3", {0: 2, 1: 1, 2: 1}),
        ("1:1:3,2:1:3", {0: 1, 1: 2, 2: 2}),
        ("1:1:3,1:2:start", {0: 1, 1: 3, 2: 1}),
        ("2:1:3:stop", {0: 1, 1: 1, 2: 2}),
        ("1:1:3,1:2:joined", {0: 1, 1: 3, 2: 1}),
        ("1:1:3,1:2:quits", {0: 1, 1: 3, 2: 1}),
    ],
    ids=["one", "rank 0", "two at once", "again before it joins", "stopped", "again while it joins", "good-bye"],
)
def test_lost_ranks_come_back_to_the_state_of_the_others(faults: str, expected: dict[int, int], tmp_path: Path) -> None:
    done = train(3, 1, faults, tmp_path)
    text = f"{done.out}\n{done.err}"
    assert done.code == 0, text
    ends = re.findall(r"DONE (\d) (\d) (\d+) (\d+ \d+) (\d) 3", done.out)
    assert {int(slot): int(start) for slot, start, *_ in ends} == expected, text
    assert len({sums for *_, sums, _ in ends}) == 1, text
    assert sorted(starts(done)) == [
        (str(slot), str(start)) for slot, last in expected.items() for start in range(2, last + 1)
    ]
    assert re.search(r"rank \d \(host \S+, process \d+\).* has joined; 3 ranks go on as epoch \d", done.err), text
    for slot, start, pid, _, rank in ends:
        entries = re.findall(rf"IN {slot} {start} (\d+) (\d+) (\d) (\d)", done.out)
        assert {entry[0] for entry in entries} == {pid}, "survivors stay in their processes"
        # Processes that have joined come behind those that were there.
        assert start == "1" or int(rank) >= sum(last == 1 for last in expected.values()), text
    if faults == "1:1:3":
        # One loss and one join: the survivors go back to a commit once, and once they stay where they are.
        assert sorted(re.findall(r"RESET (\d) (\d) (\d)", done.out)) == [
            ("0", "0", "2"),
            ("0", "0", "3"),
            ("2", "1", "2"),
            ("2", "1", "3"),
        ]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (
            "1:2:start:stop",
            r"rank 1 has not come to init\(\) within 10s of its start \(elastic.join_timeout\), and is ended",
        ),
        ("1:2:waiting:stop", r"rank 1 \(host .* has been silent for .*; it has not joined yet, and is ended"),
        ("1:2:joined:hang", r"rank 2 has not got the state of the job within 10 s and is given up"),
    ],
    ids=["before it comes", "while it waits", "without the state"],
)
def test_a_new_rank_that_does_not_go_on_is_ended_and_replaced(fault: str, text: str, tmp_path: Path) -> None:
    done = train(3, 1, f"1:1:3,{fault}", tmp_path, "--elastic-join-timeout", "10s")
    assert done.code == 0, done.err
    assert starts(done) == [("1", "2"), ("1", "3")], done.err
    assert re.search(text, done.err), done.err


def test_a_program_that_fails_at_each_start_is_given_up(tmp_path: Path) -> None:
    done = train(2, 2, "1:1:3,1:flaps", tmp_path, "--elastic-restarts", "2")
    text = f"{done.out}\n{done.err}"
    assert done.code == 128 + 9, text
    assert starts(done) == [("1", "2"), ("1", "3")], text
    assert done.err.count("rank 1 ended before it had joined: exit code 3") == 2, text
    assert (
        "rank 1 is not started again: its last 3 processes have not lasted for a minute (elastic.restarts)" in done.err
    )
    few = "too few ranks: 1 of at least 2 (elastic.min)"
    assert f"killed by signal 9 (Killed); {few}; waiting 600 s for more\n" in done.err, text
    assert f"no ranks go on: {few}; lost: rank 1" in done.err, text


def test_an_operation_before_elastic_run_is_an_error_of_the_new_rank_alone(tmp_path: Path) -> None:
    done = train(2, 2, "1:1:3,1:talks", tmp_path, "--elastic-restarts", "1")
    text = f"{done.out}\n{done.err}"
    assert done.code == 1, text
    assert "this process has joined a running job, whose other ranks wait in elastic.run()" in done.err, text
    assert "rank 1 is not started again" in done.err, text


def test_a_rank_that_waits_when_the_job_ends_ends_without_an_error(tmp_path: Path) -> None:
    done = train(2, 1, "1:1:3,1:waits", tmp_path)
    assert done.code == 0, done.err
    assert starts(done) == [("1", "2")], done.err
    assert "Traceback" not in done.err
    assert "DONE 1" not in done.out


def test_a_rank_that_waits_never_replaces_the_state_of_all_others(tmp_path: Path) -> None:
    done = train(2, 1, "1:1:3,0:1:wanted", tmp_path)
    text = f"{done.out}\n{done.err}"
    assert done.code == 128 + 9, text
    assert re.search(r"no ranks go on: all ranks that had the model are lost; lost: rank 0 \(host ", done.err), text
    assert "; fix: set elastic.snapshot_dir" in done.err, text
    assert starts(done) == [("1", "2")], text
    assert "IN 1 2" not in done.out, text
    assert "DONE" not in done.out, text


def test_a_loop_as_it_is_takes_no_new_ranks_and_says_so_once() -> None:
    command = warm("-c", PLAIN_LOOP, "1:2:forward,2:4:forward", "backward", "none")
    done = launch("-np", "3", "--elastic", "1:3", *command, timeout=120)
    assert done.code == 0, done.err
    assert re.findall(r"DONE (\d) (\d)", done.out) == [("0", "1")]
    assert done.err.count("lost ranks are started again while the other ranks are in elastic.run()") == 1, done.err
    assert starts(done) == []


def test_a_loss_that_has_healed_is_not_to_blame_for_a_later_failure(tmp_path: Path) -> None:
    done = train(3, 1, "1:1:3,0:fails", tmp_path)
    assert done.code == 5, f"{done.out}\n{done.err}"


# The launcher calls this in the place of ssh, so one machine is two hosts.
SSH = """#!/bin/sh
for command; do :; done
exec sh -c "$command"
"""
# Rank 1 is lost, and rank 0 takes no new ranks, so a start stays due. Rank 1 tells which process its host's agent is.
ALONE = """
import os, signal, sys, threading
import sirtaki
from sirtaki.errors import RanksChangedError
from sirtaki.objects import allgather_object

sirtaki.init()
if sirtaki.rank() == 1:
    print("AGENT", os.getppid(), flush=True)
try:
    allgather_object(None)
    if sirtaki.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        allgather_object(None)
except RanksChangedError:
    threading.Event().wait(20)  # then the output ends, and so does a test that waits for more
"""


@contextmanager
def on_two_hosts(folder: Path, program: str) -> Iterator[Run]:
    """Runs a program with a rank on each of two hosts."""
    ssh = folder / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    env = {"PATH": f"{folder}:{os.environ['PATH']}"}
    hosts = ("-H", "localhost:1,elsewhere:1", "--rendezvous-address", "127.0.0.1", "--elastic", "1:2")
    with running(*hosts, PYTHON, "-c", program, env=env, stderr=subprocess.STDOUT) as run:
        yield run


def test_a_place_is_given_up_when_its_host_goes_away_while_a_start_is_due(tmp_path: Path) -> None:
    with on_two_hosts(tmp_path, ALONE) as run:
        agent = int(run.read_until(r"AGENT (\d+)")[0][1])
        run.read_until("lost ranks are started again while the other ranks are in elastic.run")
        os.kill(agent, signal.SIGKILL)
        run.read_until("rank 1 is not started again: its host is gone")


# Or the launcher would start ranks there for ever: an agent that has got SIGTERM starts none any more.
def test_a_host_is_gone_when_its_agent_has_got_sigterm_and_its_ranks_have_ended(tmp_path: Path) -> None:
    alive = ALONE.replace("os.kill(os.getpid(), signal.SIGKILL)", "print('JOINED', flush=True)")
    with on_two_hosts(tmp_path, alive) as run:
        agent = int(run.read_until(r"AGENT (\d+)")[0][1])
        run.read_until("JOINED")
        os.kill(agent, signal.SIGTERM)
        run.read_until("rank 1 is not started again: its host is gone")
