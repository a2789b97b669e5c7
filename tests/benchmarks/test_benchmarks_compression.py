"""The benchmarks of compression: formulas, verdicts and baselines, without measuring anything."""

from __future__ import annotations

import pytest

from benchmarks import compressed_allreduce, methods, never_lose, time_to_quality
from benchmarks.common.contest import NetCase, TaskCase
from benchmarks.statistics import mean_estimate
from benchmarks.training import trainings

CASE = compressed_allreduce.Case("200", 4, 1 << 20)


def test_bytes_of_a_codec_follow_from_its_definition() -> None:
    known = compressed_allreduce.METHODS
    assert known["gloo"].formula(4, 1000) == 6000
    assert known["twobit"].formula(4, 1600) == 600
    assert known["group_topk"].formula(2, 512) == 30


def test_rows_of_an_allreduce_judge_bytes_time_and_speed() -> None:
    seconds = {"gloo": [0.264] * 3, "twobit": [0.0175] * 3}
    formula = compressed_allreduce.METHODS["twobit"].formula(4, CASE.numel)
    counted = {"gloo": 1.5 * 4 * CASE.numel, "twobit": 1.2 * formula}
    rows = compressed_allreduce.rows_of(CASE, seconds, counted, {"twobit": [0.01] * 3})
    found = {(row.metric, row.params["method"]): row for row in rows}
    assert found["speedup_over_gloo", "twobit"].met is True
    assert found["sent_over_formula", "twobit"].met is False
    assert found["time_over_bound", "twobit"].value == pytest.approx(
        0.0175 / CASE.wire(compressed_allreduce.METHODS["twobit"])
    )
    assert found["sent_over_formula", "gloo"].target is None


def test_what_a_codec_takes_is_told_once_and_of_loopback() -> None:
    alone = compressed_allreduce.Case("loopback", 4, 1 << 20)
    (row,) = compressed_allreduce.codec_rows(alone, {"twobit": [0.01] * 3})
    assert (row.metric, row.value) == ("codec_seconds", 0.01)
    assert (row.params["net"], row.params["rate_mbit"], row.params["ranks"]) == ("loopback", None, 4)
    seconds = {"gloo": [0.264] * 3, "twobit": [0.0175] * 3}
    rows = compressed_allreduce.rows_of(CASE, seconds, {"gloo": 1.0, "twobit": 1.0}, {"twobit": [0.01] * 3})
    assert all(row.metric != "codec_seconds" for row in rows)


def test_a_mean_over_seeds_has_an_interval_around_it() -> None:
    figure = mean_estimate([1.0, 2.0, 3.0, 6.0])
    assert figure.value == 3.0
    assert 1.0 <= figure.low < 3.0 < figure.high <= 6.0
    assert mean_estimate([2.0]).spread() == {"q1": 2.0, "q3": 2.0, "low": 2.0, "high": 2.0}


def training(loss: float, accuracy: float) -> dict[str, float]:
    return {"loss": loss, "accuracy": accuracy, "seconds": 1.0}


def test_a_method_is_judged_against_dense_training_and_its_control_against_it() -> None:
    found = {
        "dense": [training(0.27, 0.893), training(0.28, 0.891)],
        "hylo": [training(0.28, 0.889), training(0.285, 0.888)],
        "hylo_no_ef": [training(0.31, 0.88), training(0.32, 0.879)],
        "algc": [training(0.53, 0.81), training(0.56, 0.80)],
        "zero": [training(0.54, 0.80), training(0.53, 0.81)],
    }
    rows = {row.metric: row for row in methods.training_rows(4, "hylo", found)}
    assert rows["accuracy_lost"].value == pytest.approx(0.35)
    assert rows["accuracy_lost"].met is True
    assert rows["loss_excess"].value == pytest.approx(0.0075)
    control = {row.metric: row for row in methods.training_rows(4, "hylo_no_ef", found)}
    assert control["control_loss_excess"].value == pytest.approx(0.0325)
    assert control["control_loss_excess_lower_edge"].met is True
    edges = [row for row in methods.training_rows(4, "zero", found) if row.metric == "control_loss_excess_lower_edge"]
    assert [(row.params["against"], row.met) for row in edges] == [("hylo", True), ("algc", False)]
    assert all(row.target is None for row in methods.training_rows(4, "dense", found))


def test_a_mean_above_what_may_be_lost_misses_although_its_interval_reaches_it() -> None:
    found = {
        "dense": [training(0.27, 0.89), training(0.27, 0.89)],
        "group_topk": [training(0.28, 0.885), training(0.28, 0.873)],
    }
    rows = {row.metric: row for row in methods.training_rows(4, "group_topk", found)}
    lost = rows["accuracy_lost"]
    assert lost.spread["low"] < 1.0 < lost.value
    assert lost.met is False
    assert rows["accuracy_lost_upper_edge"].met is None


def test_bytes_and_speed_are_judged_on_the_link_they_were_asked_for() -> None:
    samples = {"seconds": {"dense": [0.1] * 4, "algc": [0.04] * 4}, "bytes": {"dense": 1.2e6, "algc": 6e4}}
    samples["alone"] = [0.025] * 4
    for net, judged in (("100", True), ("20", None)):
        rows = {(r.metric, r.params["method"]): r for r in methods.step_rows(NetCase(net, 4), samples)}
        assert rows["speedup_over_dense", "algc"].met is judged
        assert rows["fewer_bytes", "algc"].met is True
        assert rows["speedup_over_dense", "algc"].bound == pytest.approx(4.0), "60 kB take less than computing"
        assert rows["step_seconds", "dense"].bound == pytest.approx(1.2 * 8 / float(net))


def test_every_control_belongs_to_a_method() -> None:
    for method in methods.METHODS.values():
        assert (method.kind == "control") == bool(method.control_of)
        assert all(methods.METHODS[other].kind == "method" for other in method.control_of)


def test_losses_are_smoothed_before_they_are_compared() -> None:
    window = time_to_quality.WINDOW
    losses = [2.0] * window + [0.0] * window
    smooth = trainings.smooth(losses, window)
    assert len(smooth) == window + 1
    assert (smooth[0], smooth[-1]) == (2.0, pytest.approx(0.0))
    assert trainings.steps_to(losses, 1.0, window) == window + window // 2
    assert trainings.steps_to(losses, -1.0, window) is None


def test_no_step_to_the_target_is_shorter_than_one_that_sends_nothing() -> None:
    window = time_to_quality.WINDOW
    losses = {"ddp": [[2.0] * window + [0.0] * window] * 2, "int8": [[2.0] * window + [0.0] * (window + 10)] * 2}
    seconds = {"ddp": [0.3] * 3, "int8": [0.1] * 3, "alone": [0.04] * 3}
    rows = time_to_quality.rows_of(TaskCase("100", 4, "cnn"), losses, seconds)
    found = {(row.metric, row.params["system"]): row for row in rows}
    assert found["step_seconds", "int8"].bound == 0.04
    to_target = found["seconds_to_target", "int8"]
    assert to_target.bound == pytest.approx(to_target.value / 0.1 * 0.04)
    assert found["speedup_over_ddp", "int8"].bound == pytest.approx(0.3 / 0.04)


def test_auto_is_judged_against_the_best_setting_of_its_link() -> None:
    case = TaskCase("200", 4, "cnn")
    travel = [{"codec": "none"}, {"codec": "int8"}, {"codec": "int8"}]
    for auto, met in ((0.0500, True), (0.0520, False)):
        seconds = {"none": [0.09] * 4, "int8": [0.0495] * 4, "onebit": [0.046] * 4, "auto": [auto] * 4}
        rows = never_lose.rows_of(case, {"seconds": seconds, "travel": travel}, [0.045] * 4)
        found = {(row.metric, row.params["setting"]): row for row in rows}
        best = found["rate_over_best", "auto"]
        assert best.baseline == {"name": "int8", "value": 1.0}
        assert best.value == pytest.approx(0.0495 / auto)
        assert best.met is met
        assert best.bound == pytest.approx(0.0495 / 0.045)
        assert best.params["travel"] == "1 none, 2 int8"
        assert found["rate_over_shortest", "auto"].value == pytest.approx(0.046 / auto)
        assert found["rate_over_shortest", "auto"].target is None
        assert found["rate_over_dense", "auto"].value == pytest.approx(0.09 / auto)
        assert all(row.bound == 0.045 for row in rows if row.metric == "step_seconds")


def test_the_best_setting_is_not_chosen_by_the_blocks_that_judge_it() -> None:
    lucky_first, lucky_second = [0.8, 1.2] * 4, [1.2, 0.8] * 4
    samples = {"none": lucky_first, "int8": lucky_second, "auto": [1.0] * 8}
    contest = never_lose.cross_fitted(samples)
    assert contest.names == "int8, none"
    assert contest.fixed == [1.2] * 8
    assert contest.auto == [1.0] * 8


def test_a_figure_below_its_target_is_missed_although_its_interval_reaches_it() -> None:
    case = TaskCase("200", 4, "cnn")
    seconds = {"none": [0.09, 0.11, 0.09, 0.11], "int8": [0.2] * 4, "auto": [0.11, 0.11, 0.10, 0.11]}
    rows = never_lose.rows_of(case, {"seconds": seconds, "travel": []}, [0.045] * 4)
    best = next(row for row in rows if row.metric == "rate_over_best")
    assert best.value < never_lose.TARGET <= best.spread["high"]
    assert best.met is False


def test_trainings_do_not_depend_on_the_link() -> None:
    texts = [method.text for method in methods.METHODS.values()]
    texts += [str(entrant.how.get("compression", "none")) for entrant in time_to_quality.ENTRANTS.values()]
    for text in texts:
        assert text in ("none", "fp16") or text.startswith("powersgd") or "wire=" in text
        assert not text.startswith("algc") or "most=" in text


def test_low_rank_of_full_rank_is_exact_and_keeps_what_it_does_not_send() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.baselines.torch_compressed import LowRank

    generator = torch.Generator().manual_seed(5)
    thin = torch.randn(40, 2, generator=generator) @ torch.randn(2, 30, generator=generator)
    matrix, vector = torch.zeros(40, 30, requires_grad=True), torch.zeros(7, requires_grad=True)
    exact = LowRank([matrix, vector], 2, 0, lambda _: None, 1)
    matrix.grad, vector.grad = thin.clone(), torch.arange(7.0)
    exact.run()
    assert torch.allclose(matrix.grad, thin, atol=1e-3)
    assert torch.equal(vector.grad, torch.arange(7.0))
    rough = LowRank([matrix, vector], 1, 0, lambda _: None, 1)
    total = torch.zeros(40, 30)
    for _ in range(2):
        matrix.grad = thin.clone()
        rough.run()
        total += matrix.grad
    assert torch.allclose(total + rough._errors[0], 2 * thin, atol=1e-3)
