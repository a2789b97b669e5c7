"""One process without a launcher: a script runs unchanged."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import sirtaki  # noqa: E402
import sirtaki.torch as hvd  # noqa: E402
from sirtaki import _core  # noqa: E402
from sirtaki import _end_report as end_report  # noqa: E402
from sirtaki._report_text import decision_lines, layer_lines, layer_table, local_rows, placement  # noqa: E402
from sirtaki.pump import pump  # noqa: E402
from sirtaki.report import Progress  # noqa: E402
from sirtaki.torch.compression import suited  # noqa: E402


@pytest.fixture
def session() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_calls_before_init_say_what_to_do() -> None:
    assert not hvd.is_initialized()
    for call in (hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size, lambda: hvd.allreduce(torch.ones(1))):
        with pytest.raises(ValueError, match=r"init\(\)"):
            call()
    hvd.shutdown()


def test_the_import_leaves_the_compiler_of_torch_alone() -> None:
    program = (
        "import sys, torch; known = 'torch._dynamo' in sys.modules; import sirtaki.torch; "
        "sys.exit('torch._dynamo' in sys.modules and not known)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_init_twice_and_shutdown_twice() -> None:
    hvd.init()
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
    hvd.shutdown()
    hvd.shutdown()
    assert not hvd.is_initialized()


def test_every_function_of_horovod_torch_is_there() -> None:
    names = [
        "init",
        "shutdown",
        "is_initialized",
        "start_timeline",
        "stop_timeline",
        "size",
        "local_size",
        "cross_size",
        "rank",
        "local_rank",
        "cross_rank",
        "is_homogeneous",
        "mpi_threads_supported",
        "mpi_enabled",
        "mpi_built",
        "gloo_enabled",
        "gloo_built",
        "nccl_built",
        "ddl_built",
        "ccl_built",
        "cuda_built",
        "rocm_built",
        "allreduce",
        "allreduce_async",
        "allreduce_",
        "allreduce_async_",
        "grouped_allreduce",
        "grouped_allreduce_async",
        "grouped_allreduce_",
        "grouped_allreduce_async_",
        "allgather",
        "allgather_async",
        "grouped_allgather",
        "grouped_allgather_async",
        "broadcast",
        "broadcast_async",
        "broadcast_",
        "broadcast_async_",
        "alltoall",
        "alltoall_async",
        "reducescatter",
        "reducescatter_async",
        "grouped_reducescatter",
        "grouped_reducescatter_async",
        "join",
        "barrier",
        "poll",
        "synchronize",
        "sparse_allreduce_async",
        "Average",
        "Sum",
        "Min",
        "Max",
        "Product",
        "Adasum",
        "Compression",
        "broadcast_parameters",
        "broadcast_optimizer_state",
        "broadcast_object",
        "allgather_object",
        "DistributedOptimizer",
        "global_process_set",
        "ProcessSet",
        "add_process_set",
        "remove_process_set",
        "SyncBatchNorm",
        "elastic",
        "HorovodInternalError",
    ]
    assert [name for name in names if not hasattr(hvd, name)] == []
    assert set(hvd.__all__) <= set(dir(hvd))


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="interface"):
        sirtaki.init(options={"net.interfase": "eth0"})
    assert not hvd.is_initialized()


def test_options_given_to_init_are_used() -> None:
    sirtaki.init(options={"torch.sync": "step", "control.stall_warn": "10s"})
    rows = {row["name"]: row for row in sirtaki.options()}
    assert rows["torch.sync"]["value"] == "step"
    assert rows["torch.sync"]["source"] == "program"
    sirtaki.shutdown()


def test_a_trace_that_cannot_be_written_is_said_in_the_log(tmp_path: Path) -> None:
    program = "import sirtaki\nsirtaki.init(options={'timeline.path': '/no/such/folder/t.json'})\nsirtaki.shutdown()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert "no trace is written" in done.stderr
    assert "/no/such/folder/t.json" in done.stderr


def test_predicates_say_what_is_built() -> None:
    assert hvd.gloo_built()
    assert not hvd.mpi_built()
    # NCCL needs the plug-in and a library, loaded by the process or installed in the system.
    assert hvd.nccl_built() == 0 or (hvd.cuda_built() and hvd.nccl_built() >= 21801)


@pytest.mark.usefixtures("session")
def test_training_alone_equals_plain_training() -> None:
    def train(wrap: bool, sync: str) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        if wrap:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), sync=sync)
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).square().mean().backward()
            optimizer.step()
        return model.weight.detach()

    for sync in ("backward", "step", "forward"):
        assert torch.equal(train(False, ""), train(True, sync))


@pytest.mark.usefixtures("session")
def test_misuse_is_refused_alone_too() -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), sync="step"
    )
    model(torch.ones(3, 4)).sum().backward()
    with pytest.raises(RuntimeError, match=r"bias|weight"):
        model(torch.ones(3, 4)).sum().backward()
    with pytest.raises(RuntimeError, match="zero_grad"):
        optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()
    with optimizer.skip_synchronize():
        model(torch.ones(3, 4)).sum().backward()
        with pytest.raises(RuntimeError, match="synchronize"):
            optimizer.step()


def test_every_codec_and_policy_is_an_attribute_of_compression() -> None:
    with pytest.raises(ValueError, match="known are") as refused:
        _core.check_codec("no_such_codec")
    names = str(refused.value).partition("known are ")[2].split(", ")
    assert {"auto", "group_topk"} <= set(names)
    assert [name for name in names if not hasattr(hvd.Compression, name)] == []
    assert str(hvd.Compression.onebit) == "onebit"
    with pytest.raises(AttributeError, match="did you mean onebit"):
        _ = hvd.Compression.one_bit


def test_auto_spares_optimizers_that_need_all_elements() -> None:
    params = [torch.nn.Parameter(torch.zeros(2))]
    sgd, adam = torch.optim.SGD(params, lr=0.1), torch.optim.Adam(params)
    rules = "a*=>int8; b*=> auto:rate=1%;*=>auto"
    assert suited(rules, sgd) == rules
    assert suited("auto", adam) == "auto:optimizer=adam"
    assert suited(rules, adam) == "a*=>int8; b*=> auto:rate=1%,optimizer=adam;*=>auto:optimizer=adam"
    _core.check_codec(suited(rules, adam))
    for left in ("auto:optimizer=sgd", "auto:rate=1%, optimizer=other", "hylo", "none", "auto*=>int8"):
        assert suited(left, adam) == left


def test_auto_knows_the_kind_of_each_optimizer() -> None:
    params = [torch.nn.Parameter(torch.zeros(2, 2))]

    class Shampoo(torch.optim.Optimizer):
        """An optimizer of a package."""

    optim = torch.optim
    kinds = {optim.SGD: "sgd", optim.AdamW: "adam", optim.Muon: "other", optim.Adafactor: "adam", Shampoo: "other"}
    for made, kind in kinds.items():
        optimizer = made(params, {}) if made is Shampoo else made(params, lr=0.1)
        assert suited("auto", optimizer) == ("auto" if kind == "sgd" else f"auto:optimizer={kind}")
    assert suited("auto", None) == "auto:optimizer=other"


def test_local_updates_of_a_model_name_the_call_that_makes_them() -> None:
    class KerasModel(torch.nn.Module):
        trainable_variables: tuple[object, ...] = ()

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = r'accelerate\(model, optimizer, local_updates="auto"\)'
    with pytest.raises(ValueError, match=rf"takes no model.*: call sirtaki\.torch\.ddp\.{call}"):
        hvd.LocalUpdates(model, optimizer, "auto")
    with pytest.raises(ValueError, match=r"takes no model.*: call sirtaki\.keras\.DistributedOptimizer"):
        hvd.LocalUpdates(KerasModel())
    assert callable(hvd.LocalUpdates(lambda measured: 4).interval)


def test_the_table_of_layers_is_aligned() -> None:
    common = {"recipe": "dense", "density": 1.0, "wire_bytes": 400, "ratio": 1.0, "owed_norm": 0.0}
    sparse = {"recipe": "gather", "density": 0.01, "wire_bytes": 25_157, "ratio": 15.9, "owed_norm": 0.25}
    rows = [
        {"name": "conv.weight", "codec": "group_topk", **sparse, "reason": "a matrix"},
        {"name": "b", "codec": "none", **common, "reason": "a vector"},
    ]
    assert layer_table(rows) == [
        "tensor       codec       recipe  density  kB    ratio  residual  reason",
        "conv.weight  group_topk  gather  0.01     25.2  15.9   0.25      a matrix",
        "b            none        dense   1        0.4   1.0              a vector",
    ]


def test_the_placement_of_ranks_is_told() -> None:
    assert placement([4]) == "4 on one host"
    assert placement([2, 2]) == "4 on 2 hosts, 2 each"
    assert placement([3, 1]) == "4 on 2 hosts, 3 + 1"


def test_the_report_has_what_local_updates_did() -> None:
    quiet = {"merges_excluded": 0, "merges_late": 0, "merges_given_up": 0, "alarms": {"norm": 0, "loss": 0}}
    common = {"synchronous_cost": 2.316, "merges": 84, "rounds": 21, "merged_bytes": 12_300_000}
    local = {"mode": "local", "interval": 12, "delay": 2, "reason": "link", **common, **quiet}
    assert local_rows(local) == [
        ("local updates", "a merge every 12 steps, 2 later (link)"),
        ("synchronous steps waited", "231.6% of a step without waiting"),
        ("merges", "84 in 21 rounds, 12.3 MB as float32"),
    ]
    synchronous = {**local, "mode": "sync", "reason": "fast link", "merges_late": 3, "alarms": {"norm": 2, "loss": 0}}
    assert local_rows(synchronous)[0] == ("local updates", "each step's gradients (fast link)")
    assert local_rows(synchronous)[3:] == [("merges in trouble", "3 late"), ("alarms", "2 norm")]
    assert [name for name, _ in local_rows({**local, "synchronous_cost": 0})] == ["local updates", "merges"]
    assert local_rows({}) == []


@pytest.mark.usefixtures("session")
def test_progress_shows_a_line_and_a_report() -> None:
    out = io.StringIO()
    progress = Progress(steps_per_epoch=2, samples_per_step=10, stream=out)
    progress.step(0, 0.5)
    progress.step(0, 1.5)
    assert "epoch 1  step 2/2  loss 1.0000" in progress.line()
    progress.end()
    assert "exposed communication" in out.getvalue()
    assert "1 on one host" in out.getvalue()


def layer(name: str, held_bytes: int, codec: str = "int8") -> dict[str, object]:
    more = {"recipe": "gather", "density": 1.0, "wire_bytes": held_bytes // 4, "ratio": 4.0}
    return {"name": name, "held_bytes": held_bytes, "codec": codec, "reason": "by its name", **more}


def test_the_table_of_tensors_has_the_largest_and_counts_the_rest() -> None:
    lines = layer_lines([layer(f"layer{i}", 1000 + i) for i in range(30)])
    assert lines[1].startswith("layer10 ")
    assert lines[20].startswith("layer29 ")
    assert lines[21:] == ["and 10 smaller tensors, see sirtaki.stats()['tensors']"]
    assert len(layer_lines([layer("a", 4), layer("b", 8)])) == 3
    assert layer_lines([layer("a", 4, "none")]) == []


def decision(step: int, plans: tuple[int, int], reason: str, policy: str) -> dict[str, object]:
    return {"step": step, "reason": reason, "plan": plans[0], "next_plan": plans[1], "policy": policy}


def test_the_report_has_the_changes_of_a_policy_and_its_last_word() -> None:
    changes = []
    for n in range(6):
        changes.append(decision(8 * n, (n, n + 1), "codecs", f"auto: level {n}"))
        changes.append(decision(8 * n + 1, (n, n + 1), "adopted", f"auto: level {n}"))
    last = decision(64, (6, 6), "no gain", "auto: stays")
    lines = decision_lines({"decisions": {"optimizer.0": [*changes, last], "other": []}})
    assert lines == [
        *(f"optimizer.0, step {8 * n}: auto: level {n}" for n in range(2, 6)),
        "optimizer.0, step 64: auto: stays",
    ]
    assert decision_lines({"decisions": {"a": changes[:2]}}) == ["a, step 0: auto: level 0"]
    assert decision_lines({"decisions": {"a": [last]}}) == [], "nothing ever changed"
    assert decision_lines({"decisions": {"a": [decision(3, (1, 2), "gain", "")]}}) == [], "no policy"
    assert decision_lines({}) == []


class Trained:
    """The part of an optimizer that a report reads."""

    def __init__(self) -> None:
        self.exposed_seconds = 0.0

    @staticmethod
    def local_stats() -> dict[str, object]:
        return {}

    @staticmethod
    def compression_report() -> list[dict[str, object]]:
        return [layer("fc.weight", 4000)]


def ended() -> str:
    out = io.StringIO()
    end_report.session.end(out)
    return out.getvalue()


@pytest.mark.usefixtures("session")
def test_a_report_tells_once_what_the_optimizers_did() -> None:
    optimizer, idle = Trained(), Trained()
    training, gone = end_report.follow(optimizer), end_report.follow(idle)
    for _ in range(3):
        training.stepped()
    gone.close(idle)
    text = ended()
    assert "3 in " in text
    assert text.count("steps") == 1
    assert "fc.weight" in text
    assert ended() == ""
    training.stepped()
    assert "1 in " in ended(), "a report has the steps since the last one"


@pytest.mark.usefixtures("session")
def test_an_optimizer_that_is_gone_is_told_of() -> None:
    optimizer = Trained()
    training = end_report.follow(optimizer)
    training.stepped()
    training.close(optimizer)
    del optimizer
    assert "fc.weight" in ended()


@pytest.mark.usefixtures("session")
def test_streams_are_told_of_where_no_optimizer_counts_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended() == ""
    monkeypatch.setattr(sirtaki.basics, "stats", lambda: {"tensors": {"keras": [layer("dense/kernel", 4000)]}})
    assert "dense/kernel" in ended()


@pytest.mark.usefixtures("session")
def test_no_report_comes_after_an_error_or_a_report_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = Trained()
    end_report.follow(optimizer).stepped()
    try:
        raise ValueError("on purpose")
    except ValueError:
        assert ended() == ""
    end_report.follow(optimizer).stepped()
    Progress(1, 1, stream=io.StringIO()).end()
    assert ended() == ""
    end_report.follow(optimizer).stepped()
    monkeypatch.setattr(sirtaki.basics, "stats", lambda: 1 / 0)
    assert ended() == "sirtaki: there is no report at the end: division by zero\n"


@pytest.mark.usefixtures("session")
def test_a_handle_may_be_collected_while_the_pump_is_busy() -> None:
    handles = [hvd.allreduce_async(torch.ones(1))]

    def busy() -> None:
        with pump._lock:
            handles.clear()

    thread = threading.Thread(target=busy, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.usefixtures("session")
def test_a_callback_that_raises_is_told_and_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(str(args.exc_value)))

    def broken() -> None:
        raise KeyError("broken on purpose")

    hvd.allreduce_async(torch.ones(1)).on_done(broken)
    future = hvd.get_future(hvd.allreduce_async(torch.ones(3)))
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    assert done.wait(10)
    assert future.value().tolist() == [1.0] * 3
    assert told == ["'broken on purpose'"]


def test_process_ends_well_without_shutdown() -> None:
    code = "import torch, sirtaki.torch as hvd; hvd.init(); hvd.allreduce_async(torch.ones(9)); print('done')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "done", "")


def test_run_checks_its_arguments() -> None:
    for fn, np in ((3, 2), (print, "2"), (print, 0), (print, 1.5)):
        with pytest.raises(ValueError, match="must be"):
            sirtaki.run(fn, np=np)


def test_only_the_c_interface_is_exported() -> None:
    from pathlib import Path

    library = Path(sirtaki._core.__file__).with_name("libsirtaki.so")
    if not library.exists():
        pytest.skip("not an installed package")
    listed = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    names = [line.split()[-1] for line in listed.stdout.splitlines()]
    assert names
    assert [name for name in names if not name.startswith("sirtaki_")] == []
