"""Result files of the GPU benchmarks, made from sample output of their programs; errors on machines without GPU."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.gpu import report
from benchmarks.results import Row, row_problems

SIZES = {
    "copy": 800,
    "group_topk_encode/512/5": 1200,
    "group_topk_encode/4096/41": 1200,
    "cast_to_f16": 600,
    "cast_list/160": 600,
    "batched_cast/160": 600,
    "outer_update": 2400,
    "cub_radix_sort": 800,
    "cub_segmented_sort/512": 800,
}
ROUND = {
    "copy": 0.1,
    "group_topk_encode/512/5": 0.15,
    "group_topk_encode/4096/41": 0.3,
    "cast_to_f16": 0.1,
    "cast_list/160": 0.1,
    "batched_cast/160": 0.2,
    "outer_update": 0.4,
    "cub_radix_sort": 0.6,
    "cub_segmented_sort/512": 1.5,
}
CONTENT = {"device": "NVIDIA Test", "bytes": SIZES, "rounds": [ROUND] * 5}
TORCH = {
    "torch copy": 0.1,
    "torch group_topk_encode/512/5": 0.6,
    "torch cast_to_f16": 0.05,
    "torch filter_select/65536": 1,
    "foreach outer_update": 0.64,
    "fused outer_update": 0.3,
}
OTHERS = {"rounds": [TORCH] * 5, "left_out": {}}
ALL = [*report.rows_of(CONTENT), *report.other_rows(CONTENT, OTHERS)]


def row(metric: str, kernel: str, group: int | None = None) -> Row:
    """Returns the only row of a kernel of the runtime."""
    (found,) = [
        r
        for r in ALL
        if r.metric == metric
        and r.params.get("kernel") == kernel
        and r.params.get("group") == group
        and "by" not in r.params
    ]
    return found


def test_every_name_of_the_program_is_understood() -> None:
    source = (Path(report.__file__).parent / "timings.cu").read_text()
    names = set(re.findall(r'\badd\("(\w+)', source))
    untargeted = {"all_finite", "momentum_correct", "threshold_select_exact", "twobit_choose", "twobit_measure"}
    known = {*report.NUMBERS, *report.OF_BOUND, *report.BASELINES, "copy", *untargeted}
    assert {name for name in known if not name.startswith("cast_")} == names - {"cast_to_", "cast_from_", "cast_list"}


def test_rows_follow_the_schema() -> None:
    for one in ALL:
        assert row_problems(asdict(one)) == []


def test_the_bound_is_a_copy_of_as_many_bytes() -> None:
    time = row("time", "group_topk_encode", 512)
    assert abs(time.value - 0.15e-3) < 1e-12
    assert time.bound is not None
    assert abs(time.bound - 0.15e-3) < 1e-12


def test_targets_are_shares_of_the_bound() -> None:
    small, large = row("of_bound", "group_topk_encode", 512), row("of_bound", "group_topk_encode", 4096)
    assert (round(small.value, 6), small.target, small.met) == (1.0, 0.85, True)
    assert (round(large.value, 6), large.target, large.met) == (0.5, 0.75, False)
    assert row("of_bound", "cast_to_f16").met is False


def test_a_selection_is_compared_with_a_sort() -> None:
    assert round(row("over_cub", "group_topk_encode", 512).value, 6) == 4.0
    assert round(row("over_cub_segmented", "group_topk_encode", 512).value, 6) == 10.0
    assert not [r for r in ALL if r.metric == "over_cub_segmented" and r.params["group"] == 4096]
    assert not [r for r in ALL if r.metric == "of_bound" and r.params["kernel"] in report.BASELINES]


def test_lists_are_compared_with_blocks_of_a_fixed_number() -> None:
    assert round(row("over_batched", "cast_list").value, 6) == 2.0


def test_other_sizes_and_numbers_are_said() -> None:
    variant = {"elements": 2**24, "numbers": "student_t"}
    for one in report.rows_of(CONTENT, variant):
        assert row_problems(asdict(one)) == []
        assert {name: one.params[name] for name in variant} == variant


def test_torch_has_its_times_and_kernels_are_compared_with_them() -> None:
    over = row("over_torch", "group_topk_encode", 512)
    assert (round(over.value, 6), over.target, over.met) == (4.0, 5.0, False)
    assert (round(row("over_torch", "cast_to_f16").value, 6), row("over_torch", "cast_to_f16").target) == (0.5, None)
    by_torch = {r.params["kernel"] for r in ALL if r.metric == "time" and r.params.get("by") == "torch"}
    assert by_torch == {"copy", "group_topk_encode", "cast_to_f16", "filter_select"}
    assert not [r for r in ALL if r.metric == "over_torch" and r.params["kernel"] in ("copy", "filter_select")]


def test_the_outer_update_is_compared_with_both_ways_of_sgd() -> None:
    share, foreach, fused = (row(metric, "outer_update") for metric in ("of_bound", "over_foreach", "over_fused"))
    assert (round(share.value, 6), share.target, share.met) == (0.75, 0.92, False)
    assert (round(foreach.value, 6), foreach.target, foreach.met) == (1.6, 1.5, True)
    assert (round(fused.value, 6), fused.target) == (0.75, None)
    ways = {
        r.params["by"] for r in ALL if r.metric == "time" and r.params["kernel"] == "outer_update" and "by" in r.params
    }
    assert ways == {"foreach", "fused"}


def test_lists_of_many_arrays_have_a_target_of_their_own() -> None:
    few, many = (report.target_of(report.params_of(f"cast_list/{count}", "NVIDIA Test")) for count in (160, 1000))
    assert (few, many) == (0.9, 0.75)


ROOT = Path(report.__file__).parents[2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_is_asked_for_kernels_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from benchmarks.gpu import baselines

    for name, value in {"DEVICE": "cpu", "ELEMENTS": 2**16, "FILTERS": 64, "LISTS": (16, 1000)}.items():
        monkeypatch.setattr(baselines, name, value)
    asked = {}
    for family in baselines.FAMILIES:
        asked.update({name: run for name, run in family() if not name.startswith("compiled")})
    for run in asked.values():
        run()
    kernels = {report.params_of(name.split()[1], "NVIDIA Test")["kernel"] for name in asked}
    known = {*report.NUMBERS, *report.OF_BOUND, "copy", "momentum_correct"}
    assert kernels <= known
    assert {name for over in report.OVER.values() for name in over} <= kernels


def test_torch_and_the_kernels_have_the_same_sizes() -> None:
    pytest.importorskip("torch")
    from benchmarks.gpu import baselines

    source = " ".join((Path(report.__file__).parent / "timings.cu").read_text().split())
    few, many = baselines.LISTS
    for text in (
        f"kElementsLog2 = {baselines.ELEMENTS.bit_length() - 1};",
        f"kRanks = {baselines.RANKS};",
        f"kRepeats = {baselines.REPEATS};",
        f"kAligned = {baselines.ALIGNED};",
        *(f"GroupTopk{{{group}, {keep}}}" for group, keep in baselines.GROUPS),
        f"ThresholdSelect how{{{baselines.THRESHOLD}F,",
        f"ThresholdSelect alone{{{baselines.ALONE}F,",
        f"cudaMemset(exponents, {math.log2(baselines.STEP):.0f}, ",
        f"OuterStep{{{baselines.OUTER_LR}F, {baselines.OUTER_MOMENTUM}F, true}}",
        f"add_filter({baselines.FILTER_SIZE});",
        f"shape{{{baselines.FILTERS}, size}};",
        f"add_list({few}, elements_ / {few} / kAligned * kAligned);",
        f"add_list({many}, std::min<std::int64_t>({baselines.list_elements(many)},",
    ):
        assert text in source, text
    assert source.count("GroupTopk{") == len(baselines.GROUPS)


def test_what_torch_computes_is_what_the_kernels_do() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.gpu import baselines

    torch.manual_seed(3)
    gradient, residual = torch.randn(4096), torch.randn(4096)
    owed = gradient + residual
    values, places, left = baselines.group_topk(gradient, residual, 512, 5)
    assert torch.equal(left.scatter(1, places, values).view(-1), owed)
    assert (left.abs().amax(1) <= values.abs().amin(1)).all()
    chosen, where, kept = baselines.threshold(gradient, residual, 1.5)
    assert torch.equal(kept.index_put((where,), chosen), owed)
    assert 0 < len(where) == int((owed.abs() >= 1.5).sum())
    codes, owed_still = baselines.twobit(gradient, residual, 0.5)
    packed, same = baselines.packed_twobit(gradient, residual, 0.5)
    assert torch.equal(same, owed_still)
    assert packed.numel() == 1024
    assert torch.equal(baselines.twobit_sum([packed, packed], 0.5), 2 * 0.5 * codes)
    total = baselines.sparse_sum([(chosen, where), (chosen, where)], torch.ones(4096))
    assert torch.equal(total, 2 * (owed - kept))
    grouped = baselines.group_topk_sum([(values, places)], torch.ones(8, 512))
    assert torch.equal(grouped, torch.zeros(8, 512).scatter(1, places, values))
    filters = owed.view(64, 64).clone()
    _, norms = baselines.filter_norms(filters, torch.zeros(64, 64))
    best = baselines.filter_select(norms, 6)
    assert torch.equal(baselines.filter_gather(filters, best), owed.view(64, 64)[best])
    assert not filters[best].any()


# ---- training ------------------------------------------------------------------------------


def trainings(seconds: float, accuracy: float) -> list[dict[str, object]]:
    """Returns the report of a rank about trainings with two seeds."""
    return [{"blocks": [seconds] * 4, "accuracy": accuracy + seed} for seed in (0.0, 1.0)]


def test_trainings_are_compared_with_the_cpu_and_with_ddp() -> None:
    pytest.importorskip("torch")
    from benchmarks.gpu import training

    found = {"cpu": trainings(1.0, 88.0), "ddp": trainings(0.5, 88.0), "auto": trainings(0.25, 87.0)}
    found[training.POWERSGD] = trainings(1.25, 87.0)
    rows = {(r.metric, r.params["way"]): r for r in training.rows_of(found, 50, "NVIDIA Test", "host")}
    for one in rows.values():
        assert row_problems(asdict(one)) == []
    assert rows["steps_per_second", "auto"].value == 200.0
    assert (rows["over_cpu", "auto"].value, rows["over_ddp", "auto"].value) == (4.0, 2.0)
    assert rows["over_powersgd", "auto"].value == 5.0
    assert ("over_ddp", training.POWERSGD) not in rows
    cost = rows["accuracy_cost", "auto"]
    assert (cost.value, cost.target, cost.met) == (1.0, 0.5, False)
    assert rows["accuracy_cost", "ddp"].met is True
    assert rows["accuracy", "cpu"].params == {"way": "cpu", "ranks": 2, "device": "CPU", "data": "host"}


def test_a_training_that_failed_is_compared_with_nothing() -> None:
    pytest.importorskip("torch")
    from benchmarks.gpu import training

    rows = training.rows_of({"ddp": trainings(0.5, 88.0), "auto": trainings(0.25, 87.0)}, 50, "NVIDIA Test")
    assert [(r.metric, r.params["way"]) for r in rows] == [
        ("steps_per_second", "ddp"),
        ("accuracy", "ddp"),
        ("steps_per_second", "auto"),
        ("over_ddp", "auto"),
        ("accuracy", "auto"),
    ]


def test_ranks_that_end_with_different_models_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from benchmarks.gpu import training

    ranks = [[{"digest": "a"}, {"digest": digest}] for digest in "bc"]
    monkeypatch.setattr(training.sirtaki, "run", lambda *_given, **_named: ranks)
    length = training.Length(seeds=(1, 2), epochs=1, steps=1, block=1)
    with pytest.raises(training.DifferenceError, match="seed 2"):
        training.run_way(training.Way("auto"), length, "cpu")


def test_plain_gradients_use_host_memory_and_nccl() -> None:
    pytest.importorskip("torch")
    from benchmarks.gpu import training

    plain = {way.name: dict(way.environment) for way in training.ways({}) if way.name.startswith("none")}
    variable = "SIRTAKI_DEVICE_DATA"
    assert plain == {"none, host": {variable: "host"}, "none, nccl": {variable: "nccl"}}
    # An option that the user sets applies to all ways.
    assert [way.name for way in training.ways({variable: "host"}) if way.name.startswith("none")] == ["none"]


def test_halves_over_nccl_may_differ_in_their_last_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.gpu import correctness

    one, other = [torch.tensor([0.5, 1.0])], [torch.tensor([0.5, 1.0 + 2**-23])]
    cpu = torch.device("cpu")
    assert correctness.difference(one, other, cpu) == "result 0 differs"
    assert correctness.difference(one, other, cpu, correctness.HALF_ERROR) == ""
    assert correctness.difference(one, one, cpu) == ""
    # NCCL is met, or the case fails.
    monkeypatch.setattr(correctness.sirtaki, "stats", lambda: {"device.nccl_bytes": 0})
    assert correctness.over_nccl() == "NCCL has carried nothing"
    monkeypatch.setattr(correctness.sirtaki, "stats", lambda: {"device.nccl_bytes": 8})
    assert correctness.over_nccl() == ""


# ---- programs ------------------------------------------------------------------------------


def test_without_a_gpu_the_command_says_so_before_it_builds(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'No devices found.'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    done = subprocess.run(
        [ROOT / "benchmarks/gpu/run.sh"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("run: no GPU: ")
    assert done.stdout == ""


def test_times_of_kernels_are_kept_when_torch_has_none(tmp_path: Path) -> None:
    if pytest.importorskip("torch").cuda.is_available():
        pytest.skip("torch has times here")
    program = tmp_path / "cuda_timings"
    program.write_text(f"#!/bin/sh\n[ $1 = 5 ] && echo '{json.dumps(CONTENT)}'\n")
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.report", "--program", program, "--quick", "--results", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "baselines: torch finds no CUDA device" in done.stderr
    assert "benchmarks.gpu.baselines 5 failed: it ended with 2" in done.stderr
    content = json.loads((tmp_path / "gpu_kernels.json").read_text())
    assert content["command"] == "benchmarks/gpu/run.sh --quick"
    compared = {"over_cub", "over_cub_segmented", "over_batched"}
    assert {row["metric"] for row in content["rows"]} == {"copy_rate", "time", "of_bound", *compared}


def test_figures_of_torch_are_written_family_by_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "cuda_timings"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(CONTENT)}'\n")
    program.chmod(0o755)
    families = [{"rounds": [{name: TORCH[name]}] * 5, "left_out": {}} for name in ("torch copy", "fused outer_update")]
    torch = tmp_path / "python"
    torch.write_text(f"#!/bin/sh\nprintf '%s\\n' '{json.dumps(families[0])}' '{json.dumps(families[1])}'\nexit 9\n")
    torch.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(torch))
    monkeypatch.setattr(sys, "argv", ["report", "--program", str(program), "--quick", "--results", str(tmp_path)])
    with pytest.raises(SystemExit, match="ended with 9"):
        report.main()
    rows = json.loads((tmp_path / "gpu_kernels.json").read_text())["rows"]
    assert [row["params"]["by"] for row in rows if "by" in row["params"]] == ["torch", "fused"]


def test_comparing_the_cpu_with_itself_finds_nothing() -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.correctness", "--device", "cpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("as on the CPU") == len(done.stdout.splitlines()) >= 10
