"""Measured figures on the pages are those of result files; a test shows each equality of bits that a page claims."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.pareto.entrants import TASKS, methods, trainings


@cache
def rows_of(name: str) -> list[dict[str, Any]]:
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())["rows"]


def values_of(name: str, metric: str, baseline: str | None = None, **params: Any) -> list[float]:
    """Returns the values of a metric whose parameters have the given values, of links without a delay by default."""
    wanted = {"delay_ms": 0, **params}
    return [
        row["value"]
        for row in rows_of(name)
        if row["metric"] == metric
        and wanted.items() <= {"delay_ms": 0, **row["params"]}.items()
        and (baseline is None or row["baseline"]["name"] == baseline)
    ]


def value_of(name: str, metric: str, baseline: str | None = None, **params: Any) -> float:
    (value,) = values_of(name, metric, baseline, **params)
    return value


def faster(task: str, baseline: str = "dense") -> str:
    return f"{value_of('local_updates', 'times_faster', baseline, part='race', task=task, method='auto'):.1f}"


def seconds(door: str, way: str) -> str:
    return f"{value_of('doors', 'seconds', door=door, way=way):.1f} s"


def span(values: list[float], digits: int) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def headline() -> Iterator[tuple[str, str]]:
    cnn, transformer = faster("cnn"), faster("transformer")
    yield "README.md", f"{cnn} times (a CNN) and {transformer} times (a byte transformer) as fast"
    yield "docs/choose.md", f"{cnn} times as fast (the CNN) and {transformer} times (the transformer)"
    compressed = [
        value_of("local_updates", "seconds_to_target", task=task, method="dense")
        / value_of("local_updates", "seconds_to_target", task=task, method="compressed")
        for task in ("cnn", "transformer")
    ]
    yield "README.md", f'and {compressed[0]:.1f} and {compressed[1]:.1f} times with `compression="auto"`'
    report = json.loads((ROOT / "benchmarks/results/install.json").read_text())["hosts"]["report"]
    for name in ("gradients", "sent as", "steps", "exposed communication"):
        yield "README.md", f"{name} {report[name]}"
    lost = value_of("local_updates", "quality_cost", part="race", task="cnn", method="auto")
    yield "docs/choose.md", f"the CNN ends {lost:.2f} points of accuracy below"
    lost = value_of("local_updates", "quality_cost", part="race", task="cnn", method="compressed")
    text = f'With `compression="auto"` it is {compressed[0]:.1f} and {compressed[1]:.1f} times, and {lost:.2f} points'
    yield "docs/choose.md", text
    others = faster("cnn", "local_sgd"), faster("transformer", "local_sgd")
    text = f'{cnn} times as fast with `"auto"`, {others[0]} times as fast as Local SGD with eight steps; a byte '
    yield "docs/local_updates.md", f"{text}transformer {transformer} and {others[1]} times"


def doors() -> Iterator[tuple[str, str]]:
    for page, door in (("lightning", "lightning"), ("huggingface", "huggingface")):
        yield f"docs/{page}.md", f"150 steps in {seconds(door, 'sirtaki')} instead of {seconds(door, 'plain')}"
    ddp = f"150 steps take {seconds('ddp', 'sirtaki')} instead of {seconds('ddp', 'plain')}, from the first step on; "
    yield "docs/pytorch_ddp.md", f"{ddp}{seconds('ddp', 'alone')} without any communication"
    dense = {"door": "ddp", "compression": "none", "bucket_cap_mb": "default"}
    shorter = [1 - 1 / value_of("doors", "step_speedup", processors=of, **dense) for of in ("shared", "own")]
    text = f"steps are {shorter[0]:.0%} shorter than those of DDP alone, and {shorter[1]:.0%} between two ranks"
    yield "docs/pytorch_ddp.md", text.replace("%", " %")
    large, small = (
        [
            value_of("doors", "step_over_optimizer", bucket_cap_mb=cap, compression=one, processors="own") - 1
            for one in ("none", "auto")
        ]
        for cap in ("25", "default")
    )
    text = f"{large[0]:.0%} longer than those of `DistributedOptimizer`, and {large[1]:.0%} longer with `compression="
    yield "docs/pytorch_ddp.md", text.replace("%", " %")
    yield "docs/pytorch_ddp.md", f"small buckets {small[0]:.0%} and {small[1]:.0%}.".replace("%", " %")
    fsdp = (
        f"150 steps take {seconds('fsdp', 'sirtaki')} instead of {seconds('fsdp', 'plain')} with HSDP over Gloo, and "
    )
    yield "docs/fsdp.md", f"{fsdp}{seconds('fsdp', 'alone')} if nothing"


def others() -> Iterator[tuple[str, str]]:
    one_host = span(values_of("one_host", "speedup_over_ddp"), 2)
    yield "docs/compare.md", f"{one_host} times as long (three nets, dense"
    yield "docs/performance.md", f"are {one_host} times as fast"
    hidden = [
        value
        for ratio in (1.0, 2.0)
        for value in values_of("overlap", "speedup_over_ddp_scaled", ratio=ratio, system="sirtaki_forward")
    ]
    yield "docs/compare.md", f'as long, dense; {span(hidden, 2)} times as long beside `sync="forward"`'
    small = values_of("small_tensors", "speedup_over_horovod")
    yield "docs/compare.md", f"small tensors are {span(small, 1)} times as fast"
    raw = values_of("small_tensors", "raw_speedup_over_horovod", tensors=1000, order="random")
    slower = [value for value in raw if value < 1]
    assert (len(slower), len(raw)) == (3, 4)
    yield "docs/compare.md", f"in three of four cases, at {span(slower, 2)} of Horovod's speed"


#: Trainings of the README by net.
OF_NET = {
    "convnet": {"task": "convnet", "optimizer": "sgd"},
    "transformer": {"task": "transformer", "optimizer": "adamw"},
}


def frontier() -> Iterator[tuple[str, str]]:
    ways = ("ddp", "powersgd_4", "compression_auto", "local_auto", "both_auto")
    gains = []
    for task, net, rates in (
        ("convnet", "convolution net, SGD", (5, 20, 100, "100d20", None)),
        ("transformer", "byte transformer, AdamW", (20, 100)),
    ):
        for rate in rates:
            far = rate == "100d20"
            at = {"rate_mbit": 100, "delay_ms": 20} if far else {"rate_mbit": rate}
            of_case = {**OF_NET[task], **at, "steps": 300}
            steps = [1e3 * value_of("frontier", "step_seconds", **of_case, method=way) for way in ways]
            link = "one machine" if rate is None else "100 Mbit/s with 40 ms" if far else f"{rate} Mbit/s"
            yield "README.md", f"| {net}, {link} | " + " | ".join(f"{step:.0f}" for step in steps) + " |"
            if rate in (20, 100):
                gains.append(steps[0] / steps[2])
    yield "docs/compare.md", f'{min(gains):.1f} to {max(gains):.0f} times as long beside `compression="auto"`'

    def losses(task: str, *methods: str) -> str:
        found = [
            round(value, 2)
            for method in methods
            for delay in (0, 20)
            for value in values_of("frontier", "final_loss", **OF_NET[task], method=method, steps=300, delay_ms=delay)
        ]
        return f"{found[0]:.2f}" if len(set(found)) == 1 else span(found, 2)

    yield (
        "README.md",
        f"The convolution net ends at a training loss of {losses('convnet', 'ddp')} with DDP, "
        f"{losses('convnet', 'powersgd_4')} with PowerSGD, {losses('convnet', *ways[2:])} with Sirtaki; the "
        f"transformer at {losses('transformer', 'ddp')} with DDP, {losses('transformer', 'powersgd_4')} with PowerSGD, "
        f'{losses("transformer", "compression_auto")} with `compression="auto"`, and '
        f"{losses('transformer', 'local_auto', 'both_auto')} with local updates",
    )
    ways_near = ("both_auto", "powersgd_4", "ddp")
    near = [value_of("frontier", "seconds_near_loss", task="convnet", rate_mbit=5, method=way) for way in ways_near]
    yield (
        "docs/measured_trainings.md",
        f"after {near[0]:.0f} s with both, {near[1]:.0f} s with PowerSGD of rank 4 and {near[2]:.0f} s with DDP",
    )
    far = [
        value_of("frontier", "seconds_near_loss", task="convnet", rate_mbit=100, delay_ms=20, method=way)
        for way in ("compression_auto", "ddp", "powersgd_4")
    ]
    yield (
        "docs/measured_trainings.md",
        f'that loss after {far[0]:.0f} s with `compression="auto"`, {far[1]:.0f} s with DDP and {far[2]:.0f} s with '
        "PowerSGD",
    )
    times = [
        f"{value_of('frontier', 'seconds_to_loss', **OF_NET['transformer'], rate_mbit=20, steps=300, method=way):.0f}"
        for way in ("ddp", "compression_auto", "both_auto")
    ]
    text = (
        f"On the link of 20 Mbit/s, DDP comes to its last loss plus 0.02 nats after {times[0]} s, "
        f'`compression="auto"` after {times[1]} s and both after {times[2]} s'
    )
    yield "docs/measured_trainings.md", text
    yield "docs/measured_trainings.md", of_slow_link()
    *others, local = above_with_muon()
    text = f"PowerSGD and DiLoCo are {span(others, 2)} nats above that of DDP, that of local updates {local:.2f}"
    yield "docs/measured_trainings.md", f"{text} at 20 Mbit/s"
    yield from conditions_of_frontier()


def conditions_of_frontier() -> Iterator[tuple[str, str]]:
    """Yields the texts on learning rates, seeds, methods and compression of the committed trainings."""
    content = json.loads((ROOT / "benchmarks/results/frontier.json").read_text())
    options = [dict(re.findall(r"--(\w+) (\S+)", part)) for part in content["command"].split("; ")]
    tuned = {task.partition("_")[0]: part.get("tune") for part in options for task in part["tasks"].split(",")}
    assert tuned == {"transformer": "1,2", "convnet": None, "cnn": None}
    text = "Each method trains the transformer at the better of two learning rates, the other nets at one"
    yield "docs/measured_trainings.md", text
    (seeds,) = {part["seeds"] for part in options}
    assert seeds == "1,2"
    trained = {row["params"]["method"] for row in content["rows"]} - {"none", "alone"}
    (named,) = {part["methods"].removeprefix("none,") for part in options}
    assert trained == set(named.split(","))
    yield "benchmarks/README.md", f"as committed 2 seeds of some methods (`--seeds {seeds} --methods {named}`)"
    assert {methods(one)["local_auto"].how["compression"] for one in trainings(TASKS, [300])} == {"none"}
    column = '`local_updates="auto"`, dense gradients'
    yield "docs/measured_trainings.md", f"| {column} | both |"
    yield "README.md", "| `local_updates` auto, dense gradients | both |"
    date = json.loads((ROOT / "benchmarks/results/small_tensors.json").read_text())["date"][:10]
    yield "docs/compare.md", f"Both were measured on {date}, "


def of_slow_link() -> str:
    """Returns the sentence on trainings with SGD at 20 Mbit/s."""
    gains, seconds = (
        [
            f"{value_of('frontier', metric, task=task, optimizer='sgd', rate_mbit=20, method='both_auto'):.0f}"
            for task in ("cnn", "transformer")
        ]
        for metric in ("speedup_over_ddp", "seconds_to_loss")
    )
    return (
        f"both together come to the last loss of DDP plus 0.02 nats {gains[0]} times as fast as DDP (the small CNN) "
        f"and {gains[1]} times as fast (the transformer), after {seconds[0]} and {seconds[1]} s"
    )


def above_with_muon() -> list[float]:
    """Returns the losses of PowerSGD, DiLoCo and local updates above that of DDP."""
    losses = [
        value_of("frontier", "final_loss", task="transformer", optimizer="muon", rate_mbit=20, method=method)
        for method in ("ddp", "powersgd_4", "diloco_tuned", "local_auto")
    ]
    return [loss - losses[0] for loss in losses[1:]]


def compression() -> Iterator[tuple[str, str]]:
    twobit, topk = (
        values_of("compressed_allreduce", "speedup_over_gloo", method=method, ranks=4)[0]
        for method in ("twobit", "group_topk")
    )
    text = f"`twobit` is {twobit:.0f} times as fast as the dense all-reduce of Gloo, `group_topk` {topk:.0f} times"
    yield "docs/compression/measurements.md", text
    lost = values_of("methods", "accuracy_lost", kind="control")
    without_feedback = [value for value in lost if value < max(lost)]
    text = (
        f"lose {span(without_feedback, 1)} points, and a model whose large tensors are never sent loses {max(lost):.1f}"
    )
    yield "docs/compression/measurements.md", text
    cnn, transformer = (
        [
            value_of("ladder", "loss_cost", task=task, optimizer="sgd", level=f"sparse_2%{kind}")
            for kind in ("_momentum", "")
        ]
        for task in ("cnn", "transformer")
    )
    text = f"a CNN lost {cnn[0]:.3f} nats with correction and {cnn[1]:.3f} without, a byte transformer "
    yield "docs/compression/error_feedback.md", f"{text}{transformer[0]:.3f} and {transformer[1]:.3f}"
    for system, name in (("whole", "`torch.compile` of the model"), ("regions", "`sirtaki.torch.compile`")):
        ready = [
            value_of("compiled", metric, backend="inductor", system=system)
            for metric in ("ready_first", "ready_median")
        ]
        yield "docs/scheduling.md", f"| {name} | {ready[0] * 100:.0f} % | {ready[1] * 100:.0f} % |"


def churn() -> Iterator[tuple[str, str]]:
    kept, kept_with_spare = (
        value_of("churn", "samples_kept_at_60_an_hour", system=system, faults="kill")
        for system in ("sirtaki", "sirtaki_spare")
    )
    back = value_of("churn", "return_seconds", system="sirtaki", faults="kill")
    yield "benchmarks/README.md", f"60 SIGKILL an hour, {kept:.1%} of the samples would be kept".replace("%", " %")
    yield "benchmarks/README.md", f"in the place of a lost rank, after {back:.1f} s (median)"
    yield "benchmarks/README.md", f"with a spare, {kept_with_spare:.1%} would be kept".replace("%", " %")
    pauses = [
        f"{1000 * row['value']:.0f} ms {place} ({row['n']} joins)"
        for system, faults, place in (
            ("sirtaki", "kill", "at SIGKILL"),
            ("sirtaki", "stop", "at SIGSTOP"),
            ("sirtaki_spare", "kill", "with a spare"),
        )
        for row in rows_of("churn")
        if row["metric"] == "join_gap_seconds"
        and (row["params"]["system"], row["params"]["faults"]) == (system, faults)
    ]
    assert len(pauses) == 3
    yield "benchmarks/README.md", f"`join_gap_seconds`, was {pauses[0]}, {pauses[1]} and {pauses[2]}"


def estimate() -> Iterator[tuple[str, str]]:
    page = "docs/estimate.md"
    measured = [row for row in rows_of("estimate") if row["metric"] == "error"]
    found = {}
    for method in ("dense", "auto", "local updates"):
        met = [row["met"] for row in measured if row["params"]["method"] == method]
        found[method] = f"all {len(met)}" if all(met) else f"{sum(met)} of {len(met)}"
    (limit,) = {row["target"] for row in measured}
    text = f"The prediction is within {limit:.0%} of the measured step in {found['dense']} cases"
    yield page, text.replace("%", " %")
    text = f"in {found['auto']} for `--compression auto`, and in {found['local updates']} for `--local-updates auto`"
    yield page, text
    (task,) = {row["params"]["task"] for row in measured if not row["met"]}
    missed = {2: "two", 3: "three", 4: "four"}[sum(not row["met"] for row in measured)]
    alone = {
        name: min(values_of("estimate", "step_seconds", task=name, method="alone"))
        for name in {row["params"]["task"] for row in measured}
    }
    assert min(alone, key=alone.__getitem__) == task
    yield page, f"The other {missed} are the net with the shortest step, of {1e3 * alone[task]:.0f} ms"
    longer = []
    for rate in (20, 100):
        of_case = {"task": task, "method": "local updates", "rate_mbit": rate}
        step = value_of("estimate", "step_seconds", **of_case)
        longer.append(1e3 * step * (1 - value_of("estimate", "predicted_over_measured", **of_case)))
    yield page, f"makes its steps {span(longer, 0)} ms longer; at 1000 Mbit/s"


@pytest.mark.parametrize(
    "claims", [headline, doors, others, frontier, compression, churn, estimate], ids=lambda claims: claims.__name__
)
def test_the_page_has_the_measured_figure(claims: Callable[[], Iterator[tuple[str, str]]]) -> None:
    missing = []
    for page, text in claims():
        if text not in re.sub(r"\s+", " ", (ROOT / page).read_text()):
            missing.append(f"{page}: {text}")
    assert missing == [], "the result files say so, and these pages do not"


BITS = re.compile(r"bit for bit|(?:same|equal) bits|never change a (?:bit|result)")
#: Rows of the program that compares sums with those of x86-64.
COMPARED_CODECS = len(re.findall(r'": "[0-9a-f]{16}",$', (ROOT / "scripts/codec_digests.py").read_text(), re.MULTILINE))
#: Part of a sentence, and the file and the name of the test that shows it.
SHOWN = (
    (
        "writes it into the models of all ranks, with equal bits",
        "tests/unit/local_updates/drain_test.cc",
        "InInt8AreNearTheExactMean",
    ),
    (
        "fusion and partitioning never change a result",
        "tests/conformance/reduction/reduction_test.cc",
        "MeansTheSameWhateverTheLayout",
    ),
    (
        "plans never change a bit, and all ranks have equal bits",
        "tests/scenarios/compressed_test.cc",
        "AThousandStepsLeaveAllRanksWithTheSameBits",
    ),
    (
        "none: the same bits",
        "tests/python/ranks/torch/forward_cases.py",
        "case_adam_and_adamw",
    ),
    (
        "The results are the same, bit for bit",
        "tests/python/ranks/torch/forward_cases.py",
        "case_adam_and_adamw",
    ),
    (
        "the same bits in all three modes",
        "tests/python/ranks/torch/forward_cases.py",
        "case_sgd_momentum_nesterov_weight_decay",
    ),
    (
        "bit for bit those of `none`",
        "tests/python/ranks/torch/compression_cases.py",
        "case_auto_is_bit_equal_to_none_where_no_link_is_a_limit",
    ),
    (
        "equal those of `none` bit for bit",
        "tests/python/ranks/torch/compression_cases.py",
        "case_auto_is_bit_equal_to_none_where_no_link_is_a_limit",
    ),
    (
        "continues bit for bit as if it had not stopped",
        "tests/python/ranks/torch/momentum_cases.py",
        "case_training_goes_on_bit_for_bit_from_a_checkpoint",
    ),
    (
        "equal the gradient plus the old residual, bit for bit",
        "tests/conformance/reduction/reduction_test.cc",
        "ResultsAndResidualsAddUpToTheInputs",
    ),
    (
        "parameters stay equal bit for bit on all ranks",
        "tests/python/test_many_steps.py",
        "test_hundreds_of_compressed_steps_leave_the_same_bits_on_all_ranks",
    ),
    (
        "therefore plain SGD, bit for bit",
        "tests/python/ranks/torch/momentum_cases.py",
        "case_momentum_correction_of_nothing_is_sgd_bit_for_bit",
    ),
    (
        "resumed on the same mesh continues bit for bit",
        "tests/python/ranks/torch_distributed/fsdp_local_cases.py",
        "case_torch_distributed_checkpoint",
    ),
    (
        "receive that of the root, for any optimizer, LBFGS too, bit for bit",
        "tests/python/ranks/torch/state_cases.py",
        "case_a_loaded_checkpoint_reaches_ranks_without_state",
    ),
    (
        "with equal bits everywhere",
        "tests/scenarios/local_thread_test.cc",
        "AnchorsAreTheSameAtEveryVersion",
    ),
    (
        "averaged in every step as usual, bit for bit",
        "tests/python/ranks/torch/local_cases.py",
        "case_one_step_is_the_synchronous_path",
    ),
    (
        "resumed from it continues bit for bit",
        "tests/python/ranks/torch/local_cases.py",
        "case_resumed_training_is_the_same",
    ),
    (
        "parameters are compared bit for bit",
        "tests/python/ranks/torch/local_cases.py",
        "case_models_that_differ_are_refused",
    ),
    (
        "with the same codec, bit for bit",
        "tests/python/ranks/torch_distributed/ddp_hook_cases.py",
        "case_codecs_with_every_kind_of_bucket",
    ),
    (
        "have the same bits whether ranks share a host",
        "tests/python/test_shared_memory.py",
        "test_data_takes_shared_memory_and_the_bits_are_those_of_tcp",
    ),
    (
        f"{COMPARED_CODECS} choices of codecs give the same bits as on x86-64",
        "tests/process/test_compressed.py",
        "test_sums_have_the_bits_of_other_machines",
    ),
)


def sentences_about_bits() -> Iterator[str]:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts]
    for path in [ROOT / "README.md", *pages]:
        for sentence in re.split(r"(?<=[.;|])\s", re.sub(r"\s+", " ", path.read_text())):
            if BITS.search(sentence):
                yield sentence


def test_a_test_shows_each_equality_of_bits() -> None:
    sentences = list(sentences_about_bits())
    assert [text for text in sentences if not any(part in text for part, _, _ in SHOWN)] == [], "add the test to SHOWN"
    assert [part for part, _, _ in SHOWN if not any(part in text for text in sentences)] == [], "no page says so"
    for _, path, test in SHOWN:
        assert re.search(rf"\b{test}\b", (ROOT / path).read_text()), f"{path} has no {test}"
