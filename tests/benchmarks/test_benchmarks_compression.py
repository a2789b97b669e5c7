"""The benchmarks of compression: formulas, verdicts and baselines, without measuring anything."""

from __future__ import annotations

import pytest

from benchmarks import compressed_allreduce, methods
from benchmarks.common.contest import NetCase
from benchmarks.pareto import entrants
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
    window = 50
    losses = [2.0] * window + [0.0] * window
    smooth = trainings.smooth(losses, window)
    assert len(smooth) == window + 1
    assert (smooth[0], smooth[-1]) == (2.0, pytest.approx(0.0))
    assert trainings.steps_to(losses, 1.0, window) == window + window // 2
    assert trainings.steps_to(losses, -1.0, window) is None


def test_trainings_do_not_depend_on_the_link() -> None:
    texts = [method.text for method in methods.METHODS.values()]
    for training in entrants.trainings(entrants.TASKS, (300,)):
        known = entrants.methods(training).values()
        texts += [str(method.how.get("compression", "none")) for method in known if not method.live]
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
