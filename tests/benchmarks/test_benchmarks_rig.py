"""The rig with worker processes and systems of known speed; no root, no network."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks import allreduce, idle, overlap, small_tensors, urgent
from benchmarks.common import group, rig, systems, workloads
from benchmarks.common.group import Group, GroupError
from benchmarks.common.proc import process_counters, wakeups_per_second
from benchmarks.statistics import median
from benchmarks.training import paced, shapes

FAKES = Path(__file__).resolve().parent
FAST, SLOW, DIES, REFUSES = (f"benchmarks_fakes:{name}" for name in ("Fake", "Slow", "Dies", "Refuses"))
#: The fakes ignore their tensor argument.
NO_TENSOR = 0


@pytest.fixture(autouse=True)
def _fakes_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "EXTRA_PYTHONPATH", (str(FAKES),))


def test_interleaved_samples_tell_the_systems_speeds() -> None:
    with Group(2, [FAST, SLOW]) as workers:
        contenders = [rig.Contender(FAST, workers), rig.Contender(SLOW, workers)]
        plan = rig.Plan(pairs=8, block_seconds=0.01)
        samples = rig.interleave(contenders, "allreduce_blocks", plan, numel=NO_TENSOR)
    assert [len(samples[name]) for name in (FAST, SLOW)] == [8, 8]
    assert median(samples[FAST]) >= 0.001
    assert median(samples[SLOW]) >= 0.005
    assert median(samples[SLOW]) > 1.3 * median(samples[FAST])


def test_systems_of_different_processes_take_turns_too() -> None:
    with Group(2, [FAST]) as one, Group(2, [SLOW]) as other:
        contenders = [rig.Contender(FAST, one), rig.Contender(SLOW, other)]
        plan = rig.Plan(pairs=4, block_seconds=0.005)
        samples = rig.interleave(contenders, "allreduce_blocks", plan, numel=NO_TENSOR)
    assert median(samples[SLOW]) > 1.3 * median(samples[FAST])


def test_a_contender_may_sit_turns_out_and_a_block_may_be_one_iteration() -> None:
    with Group(2, [FAST]) as one, Group(2, [SLOW]) as other:
        contenders = [rig.Contender(FAST, one), rig.Contender(SLOW, other, every=3)]
        samples = rig.interleave(contenders, "allreduce_blocks", rig.Plan(pairs=7, block_seconds=0), numel=NO_TENSOR)
    assert [len(samples[name]) for name in (FAST, SLOW)] == [7, 3]


def test_a_paused_group_goes_on_when_resumed() -> None:
    with Group(2, [FAST]) as workers:
        workers.pause()
        with pytest.raises(GroupError, match="no answer"):
            workers.call("ping", timeout=0.05)
        workers.resume()
        assert workers.call("ping") == [0, 1]


def test_a_rank_that_dies_is_named_with_its_last_words() -> None:
    with pytest.raises(GroupError, match=r"rank 1 died(.|\n)*no more sums"), Group(2, [DIES]) as workers:
        workers.call("allreduce_blocks", timeout=20, numel=NO_TENSOR, blocks=[[DIES, 1]])


def test_a_system_that_cannot_start_is_an_error_with_its_cause() -> None:
    with pytest.raises(GroupError, match=r"rank 1(.|\n)*no sums today"), Group(2, [REFUSES]):
        pass


def test_turns_alternate_and_rotate() -> None:
    assert rig.turn_order(["a", "b"], 0) == ["a", "b"]
    assert rig.turn_order(["a", "b"], 1) == ["b", "a"]
    firsts = [rig.turn_order(["a", "b", "c"], turn)[0] for turn in range(6)]
    assert sorted(firsts) == ["a", "a", "b", "b", "c", "c"]


def test_blocks_and_pairs_follow_from_time() -> None:
    plan = rig.Plan(pairs=30, min_pairs=6, block_seconds=0.05, budget_seconds=20)
    assert plan.iterations(0.001) == 50
    assert plan.iterations(4.0) == 1
    assert plan.goes_on(0, 0.0)
    assert plan.goes_on(5, 100.0)
    assert not plan.goes_on(6, 100.0)
    assert plan.goes_on(6, 10.0)
    assert not plan.goes_on(30, 3.0)


def test_bound_of_an_all_reduce_is_its_bytes_over_the_payload_rate() -> None:
    assert rig.ring_bytes(4, 64 << 20) == 1.5 * (64 << 20)
    assert rig.wire_bound(4, 64_000_000, 200) == pytest.approx(96e6 / (25e6 * 0.956), rel=1e-3)


def _rows(case: allreduce.Case, ours: float, sent: float) -> dict[str, allreduce.Row]:
    samples = {allreduce.OURS: [ours] * 30, allreduce.THEIRS: [0.5] * 30}
    rows = allreduce.rows_of(case, samples, {"sent": sent, "copied": 1e10})
    return {row.metric: row for row in rows}


def test_a_shaped_bulk_row_is_judged_against_the_payload_ceiling() -> None:
    case = allreduce.Case("200", 2, 4 << 20)
    bound = rig.wire_bound(2, 4 << 20, 200)
    assert _rows(case, bound / 0.97, 1e10)["payload_share"].met is True
    missed = _rows(case, bound / 0.90, 1e10)["payload_share"]
    assert missed.met is False
    assert missed.value == pytest.approx(0.90)


def test_a_row_whose_limit_is_the_processors_is_marked_and_not_judged() -> None:
    case = allreduce.Case("1000", 8, 64 << 20)
    row = _rows(case, 5.0, sent=8 * 119.5e6)["payload_share"]
    assert row.params["cpu_limited"] is True
    assert row.target is None
    assert row.met is None


def test_slower_than_gloo_is_a_miss_at_any_size() -> None:
    case = allreduce.Case(rig.LOOPBACK, 8, 4096)
    assert _rows(case, 0.51, 1e10)["speedup_over_gloo"].met is False
    assert _rows(case, 0.49, 1e10)["speedup_over_gloo"].met is True


def test_ranks_of_one_host_are_judged_against_gloo_and_memory() -> None:
    case = allreduce.Case(rig.LOOPBACK, 2, 64 << 20)
    bound = allreduce.bound_seconds(case, {"copied": 1e10})
    met = _rows(case, bound / 0.75, 1e10)
    assert met["speedup_over_gloo"].target == 3.5
    assert met["memory_share"].met is True
    assert _rows(case, bound / 0.65, 1e10)["memory_share"].met is False
    eight = _rows(allreduce.Case(rig.LOOPBACK, 8, 64 << 20), 0.1, 1e10)
    assert eight["speedup_over_gloo"].target == 1.0
    assert eight["memory_share"].target is None


def test_processor_time_is_counted_by_the_payload() -> None:
    case = allreduce.Case(rig.LOOPBACK, 2, 4 << 20)
    rows = allreduce.cpu_rows(case, {"sirtaki": [0.004] * 10, "gloo": [0.008] * 10})
    assert [row.metric for row in rows] == ["cpu_seconds_per_gb", "cpu_seconds_per_gb", "cpu_saving_over_gloo"]
    assert rows[0].value == pytest.approx(0.004 / (4 << 20) * 1e9)
    assert rows[2].value == pytest.approx(2.0)
    assert rows[2].met is True
    assert allreduce.Case("200", 2, 4 << 20).cpu_key is None


def test_small_tensor_rows_leave_out_what_was_not_measured() -> None:
    case = small_tensors.Case(rig.LOOPBACK, 2, 1000, "random", paced=True)
    ours = [0.031] * 30
    metrics = [row.metric for row in small_tensors.rows_of(case, {"sirtaki": ours, "gloo": [0.03] * 30})]
    assert metrics == ["step_seconds", "step_seconds", "step_over_ddp"]
    alone = small_tensors.rows_of(case, {"sirtaki": ours, "horovod": [0.06] * 30})
    assert [row.metric for row in alone] == ["step_seconds", "step_seconds", "speedup_over_horovod"]
    assert alone[-1].met is True


def test_named_operations_are_judged_against_one_fused_operation() -> None:
    case = small_tensors.Case(rig.LOOPBACK, 4, 1000, "random", paced=False)
    for seconds, met in ((0.029, True), (0.031, False)):
        rows = small_tensors.rows_of(case, {"sirtaki": [seconds] * 30, "gloo": [0.02] * 30})
        (row,) = [row for row in rows if row.metric == "raw_over_gloo_fused"]
        assert row.value == pytest.approx(seconds / 0.02)
        assert (row.baseline, row.target, row.met) == ({"name": "gloo_fused", "value": 1.0}, 1.5, met)
    noisy = [0.016, 0.028, 0.06] * 10
    (row,) = [row for row in small_tensors.rows_of(case, {"sirtaki": noisy, "gloo": [0.02] * 30}) if row.target]
    assert row.spread["low"] < 1.5 < row.spread["high"]
    assert row.met is True, "by the value"


def test_urgent_rows_are_judged_against_the_credit_and_the_large_one() -> None:
    case = urgent.Case("200", 4)
    bound = rig.wire_bound(4, (2 << 20) + urgent.URGENT_BYTES, 200)
    seconds = {
        "priority.urgent": [1.2 * bound] * 5,
        "priority.bulk": [4.3] * 5,
        "in_order.urgent": [60 * bound] * 5,
        "in_order.bulk": [4.2] * 5,
        "alone.bulk": [4.2] * 5,
    }
    rows = {row.metric: row for row in urgent.rows_of(case, {"seconds": seconds, "credit": 2 << 20})}
    assert sorted(rows) == ["bulk_slowdown", "urgent_over_wire", "urgent_seconds", "urgent_speedup"]
    assert rows["urgent_speedup"].value == pytest.approx(50)
    assert rows["bulk_slowdown"].met is True
    seconds["priority.urgent"] = [1.4 * bound] * 5
    late = urgent.rows_of(case, {"seconds": seconds, "credit": 2 << 20})
    assert late[0].met is False


def test_a_large_credit_does_not_flatter_the_urgent_operation() -> None:
    case = urgent.Case("200", 4)
    wire = rig.wire_bound(4, urgent.URGENT_BYTES, 200)
    seconds = {
        "priority.urgent": [20 * wire] * 5,
        "in_order.urgent": [4.0] * 5,
        "gloo_idle.urgent": [2 * wire] * 5,
        **{f"{mode}.bulk": [4.2] * 5 for mode in ("priority", "in_order", "alone")},
    }
    for credit, met in ((64 << 10, False), (8 << 20, True)):
        rows = {row.metric: row for row in urgent.rows_of(case, {"seconds": seconds, "credit": credit})}
        over_wire, over_idle = rows["urgent_over_wire"], rows["urgent_over_idle_gloo"]
        assert (over_wire.value, over_wire.bound) == (pytest.approx(20), 1.0)
        assert (over_idle.value, over_idle.bound) == (pytest.approx(10), pytest.approx(0.5))
        assert urgent.rows_of(case, {"seconds": seconds, "credit": credit})[0].met is met


def test_every_request_of_the_rig_exists_in_the_workloads() -> None:
    for name in (
        "allreduce_check",
        "allreduce_blocks",
        "many_blocks",
        "training_blocks",
        "memory_copy",
        "counters",
        "urgent_round",
    ):
        assert callable(getattr(workloads.Bench, name))


def test_counters_of_this_process_are_read() -> None:
    before = process_counters()
    after = {**process_counters(), "seconds": before["seconds"] + 1.0}
    assert before["rss"] > 1 << 20
    assert all(rate >= 0 for rate in wakeups_per_second(before, after).values())


def test_resnet50_has_161_tensors_and_its_number_of_parameters() -> None:
    sizes = [numel for layer in shapes.resnet50_layers(1) for numel in layer]
    assert len(sizes) == 161
    assert sum(sizes) == 25_557_032
    assert [len(layer) for layer in shapes.equal_layers(1000, 1024, 10)] == [10] * 100


def test_sizes_of_options_are_read() -> None:
    assert idle.parse_bytes("16MiB") == idle.parse_bytes(16 << 20) == 16 << 20
    assert idle.parse_bytes("64KiB") == 65536


def test_idle_rows_judge_loop_and_control_and_refuse_to_miss_them() -> None:
    rows = idle.idle_rows({}, {"srt-loop": [0.0, 0.0], "srt-control": [11.0, 12.0], "python": [50.0, 50.0]})
    assert {row.params["thread"]: row.met for row in rows} == {"srt-loop": True, "srt-control": False}
    with pytest.raises(SystemExit, match="srt-loop"):
        idle.idle_rows({}, {"srt-control": [1.0]})


def _overlap_rows(
    ratio: float, forward: float, scaled: float = 1.02, ours: float = 1.01
) -> dict[tuple[str, str], overlap.Row]:
    case = overlap.Case("200", 4, "vgg19", ratio)
    bounds = {sync: case.bound(sync) for sync in ("forward", "backward")}
    samples = {
        overlap.FORWARD: [forward * bounds["forward"]] * 5,
        overlap.BACKWARD: [ours * bounds["backward"]] * 5,
        overlap.DDP: [1.04 * bounds["backward"]] * 5,
        overlap.SCALED: [scaled * bounds["backward"]] * 5,
    }
    return {(row.metric, row.params["system"]): row for row in overlap.rows_of(case, samples)}


def test_overlap_rows_judge_the_step_against_the_bound_of_its_way_of_waiting() -> None:
    good, bad = _overlap_rows(1.0, 1 / 0.95), _overlap_rows(1.0, 1 / 0.90)
    for key in (("step_seconds", overlap.FORWARD), ("speedup_over_best_ddp", overlap.FORWARD)):
        assert good[key].met is True
        assert bad[key].met is False
    assert good["speedup_over_best_ddp", overlap.FORWARD].params["claim"] == "faster"
    assert good["speedup_over_ddp", overlap.FORWARD].target is None
    ceiling = good["speedup_over_best_ddp", overlap.FORWARD].bound
    assert ceiling is not None
    assert ceiling == pytest.approx(1.02 * 4 / 3, rel=0.01)
    exposed = good["exposed_seconds", "sirtaki_forward"]
    step = good["step_seconds", "sirtaki_forward"].value
    assert exposed.value == pytest.approx(step - exposed.params["compute_seconds"], abs=1e-3)


def test_where_compute_hides_everything_overlap_must_only_not_lose() -> None:
    rows = _overlap_rows(0.5, 1.03)
    row = rows["speedup_over_best_ddp", overlap.FORWARD]
    assert (row.target, row.met, row.params["claim"]) == (0.98, True, "not slower")


def test_the_default_must_not_be_slower_than_the_faster_ddp() -> None:
    key = ("speedup_over_best_ddp", overlap.BACKWARD)
    for scaled, name in ((1.02, "ddp_scaled"), (1.2, "ddp")):
        row = _overlap_rows(1.0, 1.0, scaled)[key]
        assert row.baseline == {"name": name, "value": 1.0}
        assert (row.target, row.met) == (1.0, True)
    assert _overlap_rows(1.0, 1.0, ours=1.03)[key].met is False
    assert _overlap_rows(0.5, 1.0, ours=1.03)[key].met is True


def test_a_share_of_the_ceiling_below_one_does_not_pass_for_faster() -> None:
    assert overlap.speedup_target(overlap.FORWARD, 2.0, 1.0) == 0.98
    assert overlap.speedup_target(overlap.FORWARD, 2.0, 1.2) == pytest.approx(1.116)
    assert overlap.speedup_target(overlap.FORWARD, 0.5, 1.5) == 0.98


def test_paced_layers_take_their_time_and_waiting_is_not_made_up_for() -> None:
    pace = paced.Pace(catch_up=False)
    begin = time.perf_counter()
    for _ in range(20):
        pace.layer(0.001)
    assert time.perf_counter() - begin >= 0.0199
    for catch_up, least in ((True, 0.0), (False, 0.003)):
        pace = paced.Pace(catch_up)
        pace.begin()
        time.sleep(0.005)  # lint: allow(sleep) a wait for gradients
        begin = time.perf_counter()
        pace.layer(0.003)
        assert time.perf_counter() - begin >= least


def test_what_the_framework_needs_between_layers_is_part_of_their_time() -> None:
    layers = [[8], [8, 4], [4]]
    recipe = {
        "layers": layers,
        "shares": [0.5, 0.3, 0.2],
        "forward_seconds": 0.03,
        "backward_seconds": 0.06,
        "order": "same",
        "seed": 0,
        "catch_up": False,
    }
    place = systems.Place(0, 1, "")
    gaps = paced.calibrate(place, recipe)
    assert len(gaps) == len(layers)
    assert all(0.0 < gap < 0.03 for both in gaps for gap in both)
    model = paced.PacedModel(place, {**recipe, "gaps": [(0.001, 0.004), (0.002, 0.005), (0.1, 0.006)]})
    assert model.layers[0].seconds == pytest.approx((0.014, 0.026))
    assert model.layers[1].seconds == pytest.approx((0.007, 0.013))
    assert model.layers[2].seconds == pytest.approx((0.0, 0.006))


def test_steps_of_a_system_that_sends_nothing_are_checked_too() -> None:
    recipe = {
        "layers": [[8], [4]],
        "forward_seconds": 0.0,
        "backward_seconds": 0.0,
        "order": "same",
        "seed": 0,
        "catch_up": True,
    }
    alone = systems.make_system("alone")
    paced.Training(systems.Place(1, 4, ""), alone, recipe).check()
    alone.averages = True
    with pytest.raises(RuntimeError, match=r"tensor 0 is not 2\.5"):
        paced.Training(systems.Place(1, 4, ""), alone, recipe).check()
