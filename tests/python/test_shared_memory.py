"""Ranks that share hosts: the data path, equal bits on all ranks, and cleanup after a death or a refusal."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from pathlib import Path

import pytest
from rank_support import launch

pytest.importorskip("torch")

SUMS = """
import hashlib, torch, sirtaki
import sirtaki.torch as hvd
hvd.init()
torch.manual_seed(hvd.rank())
digest = hashlib.sha256()
for numel in (3, 5_000, 70_001, 2_500_003):
    summed = hvd.allreduce(torch.randn(numel), op=hvd.Sum, name=f"a{numel}")
    gathered = hvd.allgather(torch.randn(numel + hvd.rank()), name=f"g{numel}")
    sent = hvd.broadcast(torch.randn(numel), root_rank=1, name=f"b{numel}")
    part = hvd.reducescatter(torch.randn(3 * numel), op=hvd.Sum, name=f"r{numel}")
    all_parts = hvd.allgather(part, name=f"rg{numel}")
    for tensor in (summed, gathered, sent, all_parts):
        digest.update(tensor.numpy().tobytes())
print("PATH", sirtaki.stats()["data_path"].replace(" ", "_"), digest.hexdigest(), flush=True)
hvd.shutdown()
"""

# Gradients of equal size, several in each partition.
TOGETHER = """
import hashlib, torch, sirtaki
import sirtaki.torch as hvd
hvd.init()
torch.manual_seed(hvd.rank())
parameters = [torch.nn.Parameter(torch.zeros(20_001)) for _ in range(24)]
named = [(str(i), p) for i, p in enumerate(parameters)]
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), named)
for step in range(8):
    optimizer.zero_grad()
    sum((p * torch.randn(20_001)).sum() for p in parameters).backward()
    optimizer.step()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in parameters)).hexdigest()
print("LENT", sirtaki.stats()["streams.lent_bytes"], sirtaki.stats()["streams.wire_bytes"], digest, flush=True)
hvd.shutdown()
"""

LIMITED = (
    """
import os, resource
if os.environ["SIRTAKI_JOB_RANK"] == "1":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
"""
    + SUMS
)

PLACED = """
import os
os.environ["SIRTAKI_JOB_HOST_ID"] = "host " + str(int(os.environ["SIRTAKI_JOB_RANK"]) % 2)
"""

DYING_INSIDE = """
import os, signal, sys, threading, time, torch, sirtaki
import sirtaki.torch as hvd
hvd.init()
tensors = [torch.ones(1 << 22) for _ in range(4)]
assert sirtaki.stats()["data_path"].startswith("shared memory")
hvd.barrier()
if hvd.rank() == 1:
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
begin = time.monotonic()
try:
    while True:
        handles = [hvd.allreduce_async(tensor, name=f"x{i}") for i, tensor in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)
except sirtaki.HorovodInternalError as error:
    print(f"SURVIVOR {hvd.rank()} {time.monotonic() - begin:.2f} {error.rank}", flush=True)
    sys.exit(3)
"""


COMPRESSED = (
    PLACED
    + """
import hashlib, torch, sirtaki
import sirtaki.torch as hvd
hvd.init()
WAYS = {
    "scatter": "twobit:wire=scatter",
    "counts": "twobit:wire=counts",
    "momentum": "group_topk:rate=5%,momentum=0.9,wire=gather",
    "ring": "group_topk:rate=5%,wire=ring",
    "whole": "threshold_sparse:density=5%",
    "losses": "importance:split=loss,start=10%,most=20%",
}
for name, how in WAYS.items():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16))
    plain = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters(), compression=how)
    generator = torch.Generator().manual_seed(hvd.rank())
    first = last = None
    for step in range(60):
        optimizer.zero_grad()
        inputs = torch.randn(16, 64, generator=generator)
        losses = (model(inputs) - inputs[:, :16]).square().mean(dim=1)
        losses.mean().backward()
        optimizer.report_loss(losses)
        optimizer.step()
        last = float(losses.mean())
        first = last if first is None else first
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    lossy = sum(row["codec"] != "none" for row in optimizer.compression_report())
    print("WAY", name, lossy, first > 1.3 * last, digest, flush=True)
hvd.shutdown()
"""
)


def _told(output: str, word: str) -> list[list[str]]:
    return [line[line.index(word) :].split() for line in output.splitlines() if word in line]


def _run(folder: Path, program: str, np: int = 3, warm: bool = True) -> str:
    script = folder / "program.py"
    script.write_text(program)
    return launch(np, str(script), limit=120, warm=warm).stdout


def test_data_takes_shared_memory_and_the_bits_are_those_of_tcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = _told(_run(tmp_path, SUMS), "PATH")
    monkeypatch.setenv("SIRTAKI_NET_SHARED_MEMORY", "off")
    tcp = _told(_run(tmp_path, SUMS), "PATH")
    assert [words[1] for words in shared] == ["shared_memory"] * 3
    assert [words[1] for words in tcp] == ["tcp"] * 3
    assert len({words[2] for words in shared + tcp}) == 1


def test_gradients_that_travel_together_are_packed_where_others_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = _told(_run(tmp_path, TOGETHER), "LENT")
    monkeypatch.setenv("SIRTAKI_NET_SHARED_MEMORY", "off")
    tcp = _told(_run(tmp_path, TOGETHER), "LENT")
    assert all(int(words[1]) > int(words[2]) / 2 for words in shared), shared
    assert [words[1] for words in tcp] == ["0"] * 3
    assert len({words[3] for words in shared + tcp}) == 1


def test_a_rank_without_shared_memory_takes_all_to_tcp_and_says_so_once(tmp_path: Path) -> None:
    output = _run(tmp_path, LIMITED)
    assert [words[1] for words in _told(output, "PATH")] == ["tcp"] * 3, output
    assert output.count("shared memory between the ranks of this host cannot be used") == 1


def test_a_death_inside_an_operation_ends_the_others_and_leaves_nothing(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    output = _run(tmp_path, DYING_INSIDE, warm=False)
    left = set(os.listdir("/dev/shm")) - before
    told = _told(output, "SURVIVOR")
    assert sorted(words[1] for words in told) == ["0", "2"], output
    for words in told:
        assert float(words[2]) < 1.8
        assert words[3] == "1"
    # Segments of other tests, which run at the same time, go.
    pause, deadline = threading.Event(), time.monotonic() + 60
    while left := left & set(os.listdir("/dev/shm")):
        assert time.monotonic() < deadline, left
        pause.wait(0.1)


def test_between_hosts_sums_go_host_by_host_with_the_same_bits_on_every_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**options: str) -> tuple[set[str], set[str]]:
        with monkeypatch.context() as patch:
            for name, value in options.items():
                patch.setenv(name, value)
            told = _told(_run(tmp_path, PLACED + SUMS, 4), "PATH")
        assert len(told) == 4
        return {words[1] for words in told}, {words[2] for words in told}

    paths, shared = run()
    assert paths == {"shared_memory_on_a_host,_tcp_between_hosts"}
    paths, tcp = run(SIRTAKI_NET_SHARED_MEMORY="off")
    assert paths == {"tcp,_host_by_host"}
    paths, flat = run(SIRTAKI_NET_HIERARCHY="off")
    assert paths == {"tcp"}
    assert len(shared) == len(flat) == 1
    assert tcp == shared != flat


def test_a_death_between_hosts_ends_the_others(tmp_path: Path) -> None:
    output = _run(tmp_path, PLACED + DYING_INSIDE, 4, warm=False)
    told = _told(output, "SURVIVOR")
    assert sorted(words[1] for words in told) == ["0", "2", "3"], output
    for words in told:
        assert float(words[2]) < 1.8
        assert words[3] == "1"


def test_two_jobs_on_one_machine_do_not_meet(tmp_path: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        folders = [tmp_path / name for name in ("one", "two")]
        for folder in folders:
            folder.mkdir()
        outputs = list(pool.map(lambda folder: _run(folder, SUMS, 2), folders))
    for output in outputs:
        assert [words[1] for words in _told(output, "PATH")] == ["shared_memory"] * 2, output
    assert len({words[2] for output in outputs for words in _told(output, "PATH")}) == 1


@pytest.mark.parametrize("ranks", [3, 4])
def test_between_hosts_compressed_trainings_are_the_same_on_all_ranks(tmp_path: Path, ranks: int) -> None:
    output = _run(tmp_path, COMPRESSED, ranks)
    told = _told(output, "WAY")
    assert len(told) == 6 * ranks, output
    for name in ("scatter", "counts", "momentum", "ring", "whole", "losses"):
        mine = [words for words in told if words[1] == name]
        assert len(mine) == ranks
        assert {words[3] for words in mine} == {"True"}, f"{name} learns nothing: {mine}"
        assert int(mine[0][2]) >= 1, f"{name}: nothing was compressed"
        assert len({words[4] for words in mine}) == 1, f"{name}: ranks differ"
