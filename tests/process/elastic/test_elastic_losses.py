"""Elastic jobs under sirtakirun: ranks are killed, stopped or fail, and the others go on in the same processes."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from launch_support import PYTHON, Outcome, launch, running, wait_until

STEPS = 10
# Each step gathers the state of all ranks. A fault "slot:step:signal" hits before it; 0 raises an exception, 1 one that
# passes shutdown(), 2 calls sys.exit(1), and -1 raises one that leads back to the last commit. Step -1 is behind the
# first loss, before the rank asks for the next epoch.
TRAIN = f"""
import os, sys
import sirtaki
from sirtaki.elastic import ObjectState, run
from sirtaki.objects import allgather_object

slot = int(os.environ["SIRTAKI_JOB_RANK"])
faults = [tuple(map(int, fault.split(":"))) for fault in sys.argv[1].split(",")]
gate = sys.argv[2] if len(sys.argv) > 2 else ""
sirtaki.init()

class State(ObjectState):
    def restore(self):
        super().restore()
        for fault in [f for f in faults if f[:2] == (slot, -1)]:
            faults.remove(fault)
            os.kill(os.getpid(), fault[2])

@run
def train(state):
    while state.step < {STEPS}:
        allgather_object(None)  # all have committed the last step before one of them is lost
        for fault in [f for f in faults if f[:2] == (slot, state.step)]:
            faults.remove(fault)
            if fault[2] == 0:
                raise ValueError("broken by the test")
            if fault[2] == 1:
                try:
                    raise ValueError("broken by the test")
                finally:
                    sirtaki.shutdown()
            if fault[2] == 2:
                sys.exit(1)
            if fault[2] < 0:
                raise sirtaki.HorovodInternalError("made by the test")
            os.kill(os.getpid(), fault[2])
        seen = allgather_object((state.step, state.total))
        assert len(set(seen)) == 1, seen
        state.total += len(seen)
        state.step += 1
        state.commit()
        print("AT", slot, os.getpid(), state.step, sirtaki.rank(), sirtaki.size(), flush=True)
        if gate and state.step == {STEPS} - 1:
            open(gate)  # a named pipe, which opens when the test opens it

state = State(step=0, total=0)
state.register_reset_callbacks([lambda: print("RESET", slot, sirtaki.rank(), sirtaki.size(), flush=True)])
train(state)
print("DONE", slot, state.total, flush=True)
sirtaki.shutdown()
"""
SILENCE = "2s"


def train(np: int, least: int, faults: str, *options: str) -> Outcome:
    options = ("-np", str(np), "--elastic", f"{least}:", "--elastic-silence", SILENCE, *options)
    return launch(*options, PYTHON, "-c", TRAIN, faults, timeout=90)


def check_survivors(done: Outcome, survivors: set[int], total: int) -> None:
    """Fails unless these slots have made all steps, each in one process, with the same sum."""
    text = f"{done.out}\n{done.err}"
    assert done.code == 0, text
    assert sorted(re.findall(r"DONE (\d+) (\d+)", done.out)) == [(str(s), str(total)) for s in sorted(survivors)], text
    for slot in survivors:
        rows = re.findall(rf"AT {slot} (\d+) (\d+)", done.out)
        assert len({pid for pid, _ in rows}) == 1, text
        assert [int(step) for _, step in rows] == list(range(1, STEPS + 1)), text


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_kill_9_of_any_rank_leaves_the_others_in_their_processes(victim: int) -> None:
    done = train(3, 2, f"{victim}:4:9")
    survivors = {0, 1, 2} - {victim}
    check_survivors(done, survivors, 4 * 3 + 6 * 2)
    # Survivors keep their order, so rank 0 is the oldest one.
    assert sorted(re.findall(r"RESET (\d) (\d) 2", done.out)) == [
        (str(slot), str(rank)) for rank, slot in enumerate(sorted(survivors))
    ]
    (told,) = re.findall(r"sirtakirun: (.* 2 ranks go on .*)", done.err)
    assert re.match(rf"rank {victim} \(host .*killed by signal 9 \(Killed\)", told), told


def test_losses_one_after_another_down_to_the_last_rank() -> None:
    done = train(4, 1, "0:2:9,2:4:9,3:7:9")
    check_survivors(done, {1}, 2 * 4 + 2 * 3 + 3 * 2 + 3)
    assert done.err.count(" on as epoch ") == 3, done.err
    # Slot 3 is no longer rank 3 when it is lost, and its output keeps its tag.
    assert "(output [3]); 1 rank goes on as epoch 4" in done.err


def test_two_ranks_lost_at_once() -> None:
    done = train(4, 2, "1:5:9,2:5:9")
    check_survivors(done, {0, 3}, 5 * 4 + 5 * 2)


def test_a_rank_lost_while_the_ranks_regroup_is_left_out_too() -> None:
    done = train(4, 2, "1:4:9,2:-1:9")
    check_survivors(done, {0, 3}, 4 * 4 + 6 * 2)
    assert sorted(re.findall(r"RESET (\d) (\d) (\d)", done.out)) == [("0", "0", "2"), ("3", "1", "2")], "one change"
    assert re.search(r"rank 2 \(host .*killed by signal 9 \(Killed\); 2 ranks go on as epoch 2", done.err), done.err


@pytest.mark.parametrize("fault", [0, 1, 2])
def test_an_exception_or_a_bad_exit_code_of_one_rank_is_a_loss(fault: int) -> None:
    done = train(3, 1, f"1:3:{fault}")
    check_survivors(done, {0, 2}, 3 * 3 + 7 * 2)
    assert ("ValueError: broken by the test" in done.err) == (fault != 2)
    assert re.search(r"rank 1 \(host .*exit code 1; 2 ranks go on as epoch 2", done.err), done.err


def test_a_shared_error_without_a_loss_leads_back_to_the_commit() -> None:
    done = train(3, 1, "1:3:-1")
    check_survivors(done, {0, 1, 2}, 10 * 3)
    assert len(re.findall(r"RESET \d \d 3", done.out)) == 3
    assert "go on as epoch" not in done.err


def test_too_few_ranks_end_the_job_with_the_first_loss() -> None:
    done = train(3, 2, "2:3:9,0:6:15")
    assert done.code == 128 + signal.SIGKILL, done.err
    assert "too few ranks: 1 of at least 2 (elastic.min)" in done.err
    assert "the first to fail was rank 2" in done.err
    assert "DONE" not in done.out


def test_a_stopped_rank_without_which_the_job_ends_is_named() -> None:
    done = train(2, 2, f"1:3:{int(signal.SIGSTOP)}")
    assert done.code == 1, done.err
    assert re.search(r"the first to fail was rank 1 on \S+: has been silent for", done.err), done.err
    assert "too few ranks: 1 of at least 2 (elastic.min)" in done.err


def test_a_stopped_rank_is_given_up_and_killed_at_the_end() -> None:
    done = train(3, 2, f"1:4:{int(signal.SIGSTOP)}")
    check_survivors(done, {0, 2}, 4 * 3 + 6 * 2)
    assert "2 ranks go on as epoch 2" in done.err


@pytest.mark.parametrize("later", [0, 1], ids=["one epoch later", "two epochs later"])
def test_a_rank_that_wakes_up_after_the_others_went_on_ends_itself(later: int, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    options = ("-np", str(3 + later), "--elastic", "2:", "--elastic-silence", SILENCE)
    faults = ",".join([f"1:4:{int(signal.SIGSTOP)}", *(f"{3 + i}:{6 + i}:9" for i in range(later))])
    with running(*options, PYTHON, "-c", TRAIN, faults, str(gate)) as run:
        _, before = run.read_until(r"RESET \d \d 2")
        pids = {slot: int(pid) for slot, pid in re.findall(r"AT (\d) (\d+)", "".join(before))}
        os.kill(pids["1"], signal.SIGCONT)
        wait_until(lambda: pids["1"] not in run.marked(), 30, "the rank that was given up ends")
        assert {pids["0"], pids["2"]} <= set(run.marked())
        with gate.open("w"):
            done = run.finish(60)
    assert done.code == 0, done.err
    assert sorted(re.findall(r"DONE (\d)", done.out)) == ["0", "2"]
    assert "[1!]" in done.err


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with running("-np", "2", "--elastic", "1:", PYTHON, "-c", TRAIN, "0:99:9", str(gate)) as run:
        run.read_until(f" {STEPS - 1} ")
        run.process.send_signal(signal.SIGINT)
        done = run.finish()
        assert done.code == 130
        assert not run.marked()


def test_programs_that_never_meet_keep_their_exit_codes(tmp_path: Path) -> None:
    assert launch("-np", "2", "--elastic", "1:", "true").code == 0
    os.mkfifo(tmp_path / "0")
    os.mkfifo(tmp_path / "1")
    # Each rank ends when the one before it has closed its pipe by its end.
    one_by_one = "r=$SIRTAKI_JOB_RANK; [ $r = 0 ] || cat $0/$((r - 1)); [ $r = 2 ] || exec 3> $0/$r"
    assert launch("-np", "3", "--elastic", "2:", "sh", "-c", one_by_one, str(tmp_path)).code == 0
    done = launch("-np", "2", "--elastic", "1:", "sh", "-c", "exit 3")
    assert done.code == 3
    assert "exit code 3" in done.err


def test_what_an_elastic_job_cannot_do_is_said_before_it_starts() -> None:
    done = launch("-np", "2", "--elastic", "3:", "true")
    assert done.code != 0
    assert "elastic.min is 3, but the job has only 2 ranks" in done.err
    assert launch("-H", "localhost:2", "--elastic", "1:2", "true").code == 0
    assert launch("--min-np", "1", "--max-np", "2", "true").code == 0
    assert launch("-np", "2", "--elastic", "1:4", "true").code == 0
    done = launch("-np", "4", "--elastic", "1:2", "true")
    assert done.code != 0
    assert "elastic.max is 2, but the job has 4 ranks at its start" in done.err
    done = launch("-np", "2", "--elastic-max", "2", "true")
    assert done.code != 0
    assert "elastic.max is 2, but without elastic.min the loss of a rank ends the job" in done.err
