"""The benchmark of elastic training under faults: schedules, figures from lines of ranks, and a quick run."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from false_rank import RANK

from benchmarks.faults import analysis
from benchmarks.faults.figures import figures_of, gate_rows, kept_share, plotted_rows, storm_rows
from benchmarks.faults.records import KILL, STOP, Fault, Line, Log, Reader
from benchmarks.faults.schedule import Event, evenly, poisson
from benchmarks.faults.storm import Storm, rage

ROOT = Path(__file__).resolve().parents[3]
STEP = 0.1


def steps(pid: int, slot: int, first: int, last: int, begin: float, **more: object) -> list[Line]:
    """Lines of a rank that commits the steps from `first` to `last`, one each 0.1 s, two samples in each."""
    size, rank = int(more.get("size", 3)), int(more.pop("rank", slot))
    given = {"generation": 1, "size": 3, "committed": True, "epoch": 0, "busy": 0.01, **more}
    made = []
    for i, step in enumerate(range(first, last + 1)):
        indices = [2 * (size * (step - 1) + rank), 2 * (size * (step - 1) + rank) + 1]
        place = {"time": begin + i * STEP, "pid": pid, "slot": slot, "step": step, "attempts": step, "digest": step}
        made.append(Line(**{**place, "indices": indices, **given}))  # type: ignore[arg-type]
    return made


def job() -> tuple[list[Line], Fault]:
    """Three ranks; 30 is killed behind its commit 5; the others go on with 6, and 31 joins them in step 9."""
    lines = [line for slot in range(3) for line in steps(10 * (slot + 1), slot, 1, 5, 1.0)]
    for slot in range(2):
        lines += steps(10 * (slot + 1), slot, 6, 8, 1.75 + 0.01 * slot, generation=2, size=2)
        lines += steps(10 * (slot + 1), slot, 9, 12, 2.10, generation=3)
    lines += steps(31, 2, 9, 12, 2.12, generation=3)
    return lines, Fault(1.45, KILL, 2, 30)


def test_a_recovery_ends_with_the_first_commit_of_the_last_survivor_without_the_victim() -> None:
    lines, fault = job()
    (found,) = analysis.recoveries(lines, [fault])
    assert found == analysis.Recovery(pytest.approx(1.76 - 1.45), 0, 0)
    # A commit with the victim that is written behind the fault ends nothing.
    late = replace(lines[4], step=6, time=1.5, attempts=6)
    again = [replace(line, attempts=line.attempts + 1) if line.generation > 1 else line for line in [*lines, late]]
    (found,) = analysis.recoveries(again, [fault])
    assert found is not None
    assert (found.seconds, found.redone, found.void) == (pytest.approx(0.31), 1, 1)


def test_a_fault_that_ends_the_training_has_no_recovery() -> None:
    lines, fault = job()
    assert analysis.recoveries([line for line in lines if line.generation == 1], [fault]) == [None]


def test_void_steps_count_and_belong_to_no_commit() -> None:
    lines, fault = job()
    lines += [
        replace(lines[0], time=1.5 + 0.01 * pid, pid=pid, step=6, committed=False, attempts=6) for pid in (10, 20)
    ]
    again = [replace(line, attempts=line.attempts + 1) if line.generation > 1 else line for line in lines]
    (found,) = analysis.recoveries(again, [fault])
    assert found is not None
    assert (found.redone, found.void) == (0, 1)


def test_steps_made_again_and_later_ones_of_the_old_membership_do_not_count() -> None:
    lines, _ = job()
    undone = steps(30, 2, 6, 7, 1.5)
    assert sorted({line.step for line in analysis.kept([*lines, *undone])}) == list(range(1, 13))
    assert all(line.pid != 30 or line.step <= 5 for line in analysis.kept([*lines, *undone]))


def test_a_join_pauses_the_others_unless_a_fault_does() -> None:
    lines, fault = job()
    assert analysis.join_gaps(lines, [fault]) == [pytest.approx(2.10 - 1.95)]
    assert analysis.join_gaps(lines, [fault, Fault(2.0, KILL, 1, 20)]) == []
    assert analysis.returns(lines, [fault]) == [pytest.approx(2.12 - 1.45)]


def test_ranks_that_differ_are_counted_in_kept_commits_alone() -> None:
    lines, _ = job()
    assert analysis.unequal_digests(lines) == 0
    assert analysis.unequal_digests([replace(line, digest=7) if line.pid == 31 else line for line in lines]) == 4
    assert analysis.unequal_digests([*lines, replace(steps(30, 2, 6, 6, 1.5)[0], digest=99)]) == 0


def test_samples_of_a_rank_killed_behind_its_commit_are_committed() -> None:
    lines, _ = job()
    counts = [count for _, count in analysis.committed_samples(lines)]
    assert counts == [6] * 5 + [4] * 3 + [6] * 4
    torn = [line for line in lines if (line.pid, line.step) != (30, 5)]
    assert [count for _, count in analysis.committed_samples(torn)] == counts


def epochs(*dealt: list[int]) -> list[Line]:
    """Lines of one rank, an epoch for each list, and one more epoch, which is not finished."""
    (line,) = steps(10, 0, 1, 1, 1.0, size=1)
    return [replace(line, step=i + 1, epoch=i, indices=indices) for i, indices in enumerate([*dealt, [0]])]


def test_an_epoch_has_each_sample_once() -> None:
    assert analysis.spoiled_samples(epochs([0, 1, 2, 3], [3, 2, 1, 0]), 4) == (0, 0)
    assert analysis.spoiled_samples(epochs([0, 1, 2], [3, 2, 1, 0, 1]), 4) == (1, 1)
    # The samples of a rank that was killed before it wrote are unknown. The last step of three ranks may repeat two.
    missing = [replace(line, size=2) for line in epochs([0, 1])]
    assert analysis.spoiled_samples(missing, 4) == (0, 0)
    assert analysis.spoiled_samples([replace(line, size=3) for line in epochs([0, 1, 2, 3, 0, 1])], 4) == (0, 0)


def test_a_survivor_that_another_process_replaces_was_restarted() -> None:
    lines, fault = job()
    assert analysis.restarted_survivors(lines, [fault], 2.5) == 0
    assert analysis.restarted_survivors(lines, [], 2.5) == 1
    assert analysis.restarted_survivors(lines, [fault], 2.5 + 2 * analysis.SILENT) == 3


def test_a_schedule_follows_from_its_seed_and_hits_every_rank() -> None:
    assert poisson(30, 480, [KILL], 7) == poisson(30, 480, [KILL], 7) != poisson(30, 480, [KILL], 8)
    events = poisson(40, 480, [KILL, STOP], 7)
    assert [event.after for event in events] == sorted(event.after for event in events)
    assert {event.kind for event in events} == {KILL, STOP}
    living = {slot: 100 + slot for slot in range(4)}
    assert {event.victim(living) for event in events} == set(living.items())
    assert Event(0.0, KILL, 0.999).victim({3: 7}) == (3, 7)
    assert [event.after for event in evenly(4, 8.0, STOP, 1)] == [0.0, 2.0, 4.0, 6.0]


def test_rows_judge_counts_and_seconds() -> None:
    lines, fault = job()
    found = figures_of(Storm(lines, [fault], begin=1.05, end=2.5), 0)
    calm = {"samples": 60, "seconds": 1.0}
    params = {"system": "sirtaki", "faults": KILL, "step_seconds": STEP}
    rows = {row.metric: row for row in storm_rows(params, found, calm, judged=True)}
    assert rows["recovery_seconds"].met is True
    assert rows["join_gap_seconds"].value == pytest.approx(0.15)
    assert all(rows[name].value == 0 for name in ("survivors_restarted", "digests_unequal", "faults_without_recovery"))
    share = kept_share(found, calm)
    assert rows["samples_kept"].value == share == pytest.approx((6 * 4 + 4 * 3 + 6 * 4) / 1.45 / 60)
    assert kept_share(found, calm, 3600 / 1.45) == pytest.approx(share)
    assert all(row.target is None for row in storm_rows(params, found, calm, judged=False))
    assert [row.value for row in plotted_rows(params, found, calm)] == [0.0, pytest.approx(0.4)]
    more = {row.metric: row for row in storm_rows(params, found, calm, judged=True, kept_at_60=0.97)}
    assert [made["samples_kept_at_60_an_hour"].target for made in (rows, more)] == [0.95, 0.97]
    bad = {row.metric: row for row in storm_rows(params, {**found, "unequal": 1}, calm, judged=True)}
    assert bad["digests_unequal"].met is False


def test_the_gate_may_cost_a_hundredth_of_a_step() -> None:
    work = {"off": [0.0100, 0.0101], "gate": [0.0101, 0.0102], "run": [0.0120, 0.0121]}
    found = {row.params["way"]: row for row in gate_rows({"step_seconds": 0.02}, work) if row.metric == "elastic_share"}
    assert found["gate"].value == pytest.approx(0.005)
    assert found["gate"].met is True
    assert found["run"].value == pytest.approx(0.1)
    slow = {**work, "gate": [0.0110, 0.0111]}
    assert [row.met for row in gate_rows({"step_seconds": 0.02}, slow) if row.target is not None] == [False]


def test_a_torn_last_line_is_not_read_before_it_is_whole(tmp_path: Path) -> None:
    (line,) = steps(10, 0, 1, 1, 1.0)
    log, reader = Log(tmp_path, 0), Reader(tmp_path)
    log.write(line)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    assert reader.new_lines() == [line]
    with path.open("ab") as file:
        file.write(whole[20:])
    assert reader.new_lines() == [line]
    reader.close()


class Ranks:
    """Processes that know nothing of each other; one that ends is started again."""

    def __init__(self, folder: Path, *, lasts: bool = True) -> None:
        self._folder, self._lasts = folder, lasts
        self.running = [self._start(slot) for slot in range(3)]
        self.starts = 3

    def _start(self, slot: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", RANK, str(self._folder), str(slot), "3", "0"], cwd=ROOT)

    def tend(self) -> str | None:
        for slot, process in enumerate(self.running):
            if process.poll() is not None:
                if not self._lasts:
                    return "a rank has ended"
                self.running[slot], self.starts = self._start(slot), self.starts + 1
        return None

    def end(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


def test_a_storm_hits_living_ranks_and_leaves_nothing() -> None:
    jobs: list[Ranks] = []

    def start(folder: Path) -> Ranks:
        jobs.append(Ranks(folder))
        return jobs[-1]

    events = [Event(0.1, KILL, 0.0), Event(0.2, STOP, 0.5), Event(0.3, KILL, 0.99)]
    storm = rage(start, 3, 0, 3.0, events)
    assert [fault.kind for fault in storm.faults] == [KILL, STOP, KILL]
    assert len({fault.pid for fault in storm.faults}) == 3
    assert (storm.ended, storm.left, jobs[0].starts) == ("", 0, 5)
    written = {line.pid: line.time for line in storm.lines}
    assert all(written[fault.pid] < fault.time + 1.0 for fault in storm.faults)
    assert storm.begin < storm.faults[0].time < storm.end


def test_a_storm_ends_with_the_job() -> None:
    begin = time.monotonic()
    storm = rage(lambda folder: Ranks(folder, lasts=False), 3, 1, 600.0, [Event(0.0, KILL, 0.0)])
    assert storm.ended == "a rank has ended"
    assert time.monotonic() - begin < 300
    assert storm.end == storm.begin + 600.0
    found = figures_of(storm, 0)
    params = {"system": "ours", "faults": KILL, "step_seconds": STEP}
    rows = {row.metric: row for row in storm_rows(params, found, {"samples": 600, "seconds": 1.0}, judged=True)}
    assert rows["job_ended"].met is False
    assert rows["samples_kept"].value < 0.1


def test_a_fault_waits_until_enough_ranks_live() -> None:
    storm = rage(Ranks, 3, 3, 0.5, [Event(0.0, KILL, 0.0)])
    assert storm.faults == []


def test_a_quick_run_kills_ranks_and_writes_rows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sirtaki")
    command = [sys.executable, "-m", "benchmarks.churn", "--quick", "--parts", "kill", "--systems", "sirtaki"]
    done = subprocess.run(
        [*command, "--results", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    for metric in ("survivors_restarted", "digests_unequal", "samples_doubled", "processes_left"):
        (row,) = [text for text in done.stdout.splitlines() if text.startswith(f"{metric} ")]
        assert row.split()[-1] == "yes", f"{done.stdout}\n{done.stderr}"
    assert "recovery_seconds" in done.stdout
    assert [path.suffix for path in sorted(tmp_path.iterdir())][:1] == [".json"]
