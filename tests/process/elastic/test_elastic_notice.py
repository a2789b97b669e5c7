"""Elastic jobs under sirtakirun in which ranks get SIGTERM: a notice, after which a rank leaves at its next commit."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from launch_support import PYTHON, Outcome, Run, running, wait_until

SAMPLES = 240
# Each step trains on one sample a rank, without a framework, whose import takes longer than the test; the state keeps
# the numbers of all samples. Behind step 3 each rank says that it is there, and waits at a named pipe for the test; in
# the mode "stuck" for ever, in code that no signal interrupts. In the mode "own" the program has a handler, which waits
# at the pipe, too. In the mode "grows" slots 0 and 1 wait for others.
TRAIN = f"""
import ctypes, os, signal, sys
import numpy as np
import sirtaki.elastic
from sirtaki._numpy import numpy_ops
from sirtaki.objects import allgather_object
from sirtaki.ops import Average

slot, folder, mode = int(os.environ["SIRTAKI_JOB_RANK"]), sys.argv[1], sys.argv[2]

def wait(text=None):
    with open(f"{{folder}}/{{slot}}") as gate:
        if text:
            print(text, slot, flush=True)
        gate.read()

def own(*_):
    wait("OWN")
    print("SAVED", slot, flush=True)

if mode == "own":
    signal.signal(signal.SIGTERM, own)
sirtaki.init()

def train(state):
    print("IN", slot, os.getpid(), sirtaki.rank(), sirtaki.size(), flush=True)
    while left := sorted(set(range({SAMPLES})) - set(state.seen)):
        sample = left[sirtaki.rank() % len(left)]
        gradient = np.full(3, sample, np.float32)
        numpy_ops.start_one(numpy_ops.allreduce(gradient, "gradient", Average, (1.0, 1.0), in_place=True)).wait()
        state.weights = state.weights - gradient
        state.seen = state.seen + allgather_object(sample)
        state.step += 1
        state.commit()
        if state.step == 3:
            print("READY", slot, os.getpid(), flush=True)
            if mode == "stuck":
                mutex = ctypes.create_string_buffer(64)
                for _ in range(2):
                    ctypes.CDLL(None).pthread_mutex_lock(mutex)
            wait()
        while mode == "grows" and set(allgather_object(slot)) == {{0, 1}}:
            state.commit()
    assert len(set(map(str, allgather_object(state.weights)))) == 1
    return state

state = sirtaki.elastic.ObjectState(weights=np.zeros(3, np.float32), step=0, seen=[])
state.register_reset_callbacks([lambda: print("RESET", slot, sirtaki.rank(), sirtaki.size(), flush=True)])
if mode == "plain":
    train(state)
else:
    sirtaki.elastic.run(train)(state)
print("DONE", slot, state.step, len(state.seen), len(set(state.seen)), flush=True)
sirtaki.shutdown()
"""


def ready(run: Run, np: int) -> dict[int, int]:
    """Waits until all ranks have made three steps. Returns their processes by slot."""
    pids: dict[int, int] = {}
    while len(pids) < np:
        match, _ = run.read_until(r"READY (\d+) (\d+)")
        pids[int(match[1])] = int(match[2])
    return pids


def command(np: int, ranks: str, folder: Path, mode: str = "loop", *options: str) -> tuple[str, ...]:
    for slot in range(np):
        os.mkfifo(folder / str(slot))
    return ("-np", str(np), "--elastic", ranks, *options, PYTHON, "-c", TRAIN, str(folder), mode)


def opened(folder: Path, pids: dict[int, int]) -> list[TextIO]:
    """Returns the other ends of the pipes, when the main thread of each rank sleeps in read()."""
    gates = [(folder / str(slot)).open("w") for slot in sorted(pids)]
    for pid in pids.values():
        wait_until_it_sleeps(pid)
    return gates


def wait_until_it_sleeps(pid: int) -> None:
    """Waits until the main thread of a process is in the kernel: Python does not see a signal just before a call."""
    stat = Path(f"/proc/{pid}/task/{pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", 20, "the rank waits")


def train(
    np: int, ranks: str, folder: Path, gone: list[int], *options: str, mode: str = "loop", killed: tuple[int, ...] = ()
) -> tuple[Outcome, dict[int, int]]:
    """Sends SIGTERM to slots behind the third step, and SIGKILL to others. Returns the outcome and all processes."""
    with running(*command(np, ranks, folder, mode, *options)) as run:
        pids = ready(run, np)
        gates = opened(folder, pids)  # the signal is there when the rank goes on
        for slot in gone:
            os.kill(pids[slot], signal.SIGTERM)
        for slot in killed:
            os.kill(pids[slot], signal.SIGKILL)
        for gate in gates:
            gate.close()
        return run.finish(60), pids


def check_others(done: Outcome, pids: dict[int, int], gone: set[int]) -> None:
    """Fails unless the others have gone on in their processes, and each sample has come once."""
    text, np = f"{done.out}\n{done.err}", len(pids)
    assert done.code == 0, text
    ends = re.findall(r"DONE (\d) (\d+) (\d+) (\d+)", done.out)
    assert {int(end[0]) for end in ends} == set(range(np)) - gone, text
    # The last step may repeat some samples, because the number of ranks does not divide the rest.
    assert all(int(end[3]) == SAMPLES and int(end[2]) < SAMPLES + np for end in ends), text
    for slot in set(range(np)) - gone:
        assert set(re.findall(rf"IN {slot} (\d+)", done.out)) == {str(pids[slot])}, text


@pytest.mark.parametrize(("victim", "ranks"), [(0, "1:4"), (2, "2:")])
def test_a_rank_leaves_at_its_next_commit_and_nothing_is_lost(victim: int, ranks: str, tmp_path: Path) -> None:
    run_file = tmp_path / "run.json"
    done, pids = train(4, ranks, tmp_path, [victim], "--report-file", str(run_file))
    check_others(done, pids, {victim})
    survivors = sorted({0, 1, 2, 3} - {victim})
    # The survivors regroup once, without a loss.
    assert sorted(re.findall(r"RESET (\d) (\d) 3", done.out)) == [(str(s), str(r)) for r, s in enumerate(survivors)]
    assert done.out.count("RESET") == 3, done.out
    (told,) = re.findall(r"sirtakirun: (.* go on .*)", done.err)
    assert re.fullmatch(rf"rank {victim} \(host .* has left in order; 3 ranks go on as epoch 2", told), told
    assert f"[{victim}!] sirtaki: rank {victim} has got SIGTERM and leaves the job at its next commit" in done.err
    assert "this process ends because of SIGTERM" in done.err
    assert "is started again" not in done.err
    assert json.loads(run_file.read_text())["ended_by"] == ("SIGTERM" if victim == 0 else "")


def test_two_ranks_leave_together(tmp_path: Path) -> None:
    done, pids = train(4, "2:", tmp_path, [3, 1])
    check_others(done, pids, {3, 1})
    assert done.err.count("this process ends because of SIGTERM") == 2, done.err


def test_a_job_ends_in_order_if_all_ranks_have_to_leave(tmp_path: Path) -> None:
    done, _ = train(3, "1:3", tmp_path, [0, 1, 2])
    text = f"{done.out}\n{done.err}"
    assert done.code == 128 + signal.SIGTERM, text
    assert done.err.count("this process ends because of SIGTERM") == 3, text
    assert "all ranks had to leave, so none has come to the end of the program" in done.err
    assert "Traceback" not in text
    assert "DONE" not in text


def test_a_rank_that_is_needed_leaves_when_another_one_has_come(tmp_path: Path) -> None:
    done, pids = train(3, "2:3", tmp_path, [1], mode="grows", killed=(2,))
    text = f"{done.out}\n{done.err}"
    assert done.code == 0, text
    assert "rank 1 cannot leave the job yet, because too few ranks would be left" in done.err, text
    assert re.search(r"rank \d \(host [^)]*\)( \(output \[1\]\))? has left in order; 2 ranks go on", done.err), text
    assert set(re.findall(r"DONE (\d)", done.out)) == {"0", "2"}, text
    assert set(re.findall(r"IN 0 (\d+)", done.out)) == {str(pids[0])}, text


def test_a_rank_that_dies_before_it_has_left_is_lost(tmp_path: Path) -> None:
    done, pids = train(3, "1:", tmp_path, [1], killed=(1,))
    check_others(done, pids, {1})
    assert "killed by signal 9" in done.err


def test_the_handler_of_the_program_runs_once_and_the_rank_leaves(tmp_path: Path) -> None:
    with running(*command(3, "1:", tmp_path, "own")) as run:
        pids = ready(run, 3)
        gates = opened(tmp_path, pids)
        os.kill(pids[1], signal.SIGTERM)
        run.read_until("OWN 1")
        os.kill(pids[1], signal.SIGTERM)
        for gate in gates:
            gate.close()
        done = run.finish(60)
    check_others(done, pids, {1})
    assert "OWN" not in done.out
    assert done.out.count("SAVED 1") == 1
    assert "a second SIGTERM is for the handler of the program alone" in done.err


@pytest.mark.parametrize("mode", ["twice", "too few", "too few and stuck", "too few that grow", "plain"])
def test_a_signal_that_is_no_notice_ends_the_rank_at_once(mode: str, tmp_path: Path) -> None:
    least = {"too few": "2:", "too few and stuck": "2:", "too few that grow": "2:2"}.get(mode, "1:")
    kind = {"too few and stuck": "stuck", "plain": "plain"}.get(mode, "loop")
    ends = least == "2:"  # by itself, with the rank
    with running(*command(2, least, tmp_path, kind)) as run:
        pids = ready(run, 2)
        wait_until_it_sleeps(pids[1])
        os.kill(pids[1], signal.SIGTERM)
        wait_until(lambda: ended(run, pids[1], again=mode == "twice"), 20, "the rank has ended in its step")
        if not ends:
            (tmp_path / "0").open("w").close()
        done = run.finish(60)
    text = f"{done.out}\n{done.err}"
    assert "killed by signal 15" in done.err, text
    assert ("rank 1 is started again" in done.err) == (mode == "too few that grow"), text
    if mode != "plain":  # there the other rank may be in a step, which is void then
        assert done.code == (128 + signal.SIGTERM if ends else 0), text


def ended(run: Run, pid: int, again: bool) -> bool:
    """Returns True if the process has ended; else sends it SIGTERM again if asked to."""
    if pid not in run.marked():
        return True
    if again:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return False


def test_the_launcher_ends_ranks_that_are_stuck_at_once(tmp_path: Path) -> None:
    with running(*command(2, "1:", tmp_path, "stuck")) as run:
        ready(run, 2)
        run.process.send_signal(signal.SIGINT)
        done = run.finish(20)  # the grace of a rank that handles SIGTERM is 30 s
    assert done.code == 128 + signal.SIGINT, done.err
    assert "has got SIGTERM" not in done.err


def test_the_launcher_calls_the_handler_of_the_program_once(tmp_path: Path) -> None:
    with running(*command(2, "1:", tmp_path, "own", "--term-grace", "2s")) as run:
        gates = opened(tmp_path, ready(run, 2))
        run.process.send_signal(signal.SIGINT)
        done = run.finish(30)
        for gate in gates:
            gate.close()
    assert done.code == 128 + signal.SIGINT, done.err
    assert sorted(re.findall(r"OWN \d", done.out)) == ["OWN 0", "OWN 1"], done.out
    assert "has got SIGTERM" not in done.err


def test_a_job_that_is_not_elastic_ends_with_the_rank(tmp_path: Path) -> None:
    for slot in range(2):
        os.mkfifo(tmp_path / str(slot))
    with running("-np", "2", PYTHON, "-c", TRAIN, str(tmp_path), "loop") as run:
        match, _ = run.read_until(r"READY 1 (\d+)")
        os.kill(int(match[1]), signal.SIGTERM)
        done = run.finish(60)
    assert done.code == 128 + signal.SIGTERM, done.err
