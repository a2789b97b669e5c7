"""torch.distributed over Sirtaki: collectives, DistributedDataParallel, launchers, deaths."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rank_support import case_names, check_case, clean_environment, environment, launch, pool
from test_launchers import as_open_mpi, run_all

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 90


@pytest.mark.parametrize("case", case_names("torch_distributed.distributed_cases"))
@pytest.mark.parametrize("np", [3, 4])
def test_collectives(np: int, case: str) -> None:
    check_case("torch_distributed.distributed_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch_distributed.distributed_message_cases"))
@pytest.mark.parametrize("np", [2, 3])
def test_messages(np: int, case: str) -> None:
    check_case("torch_distributed.distributed_message_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch_distributed.distributed_ddp_cases"))
@pytest.mark.parametrize("np", [3, 4])
def test_ddp(np: int, case: str) -> None:
    check_case("torch_distributed.distributed_ddp_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch_distributed.distributed_compile_cases"))
@pytest.mark.parametrize("np", [3])
def test_compiled_programs_and_rare_types(np: int, case: str) -> None:
    check_case("torch_distributed.distributed_compile_cases", np, case)


# A program that does not import sirtaki. It writes its result in one call, because the ranks share a pipe.
AGAIN = """
import sys, torch, torch.distributed as dist
for _ in range(3):
    dist.init_process_group("sirtaki")
    total = torch.ones(1)
    dist.all_reduce(total)
    where = (dist.get_rank(), dist.get_world_size(), int(total))
    dist.destroy_process_group()
sys.stdout.write(" ".join(map(str, ["RESULT", *where])) + "\\n")
"""
IMPORTED = "import sirtaki.torch\n" + AGAIN
#: Ranks on one machine, each with a host id of its own.
APART = "import os\nos.environ['SIRTAKI_JOB_HOST_ID'] = os.environ['SIRTAKI_JOB_RANK']\n" + AGAIN
WITH_OURS = AGAIN.replace('("sirtaki")', '("sirtaki", init_method="sirtaki://")')


def results(output: str) -> list[str]:
    return sorted(line[line.index("RESULT") :] for line in output.splitlines() if "RESULT" in line)


def with_torchrun(np: int, program: Path, **more: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(np)]
    done = subprocess.run(
        [*command, str(program)],
        env={**clean_environment(), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return done.stdout


@pytest.fixture
def program(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "program.py"
    path.write_text(getattr(request, "param", AGAIN))
    return path


@pytest.mark.parametrize("program", [AGAIN, WITH_OURS, APART], indirect=True, ids=["env", "sirtaki", "hosts"])
@pytest.mark.parametrize("np", [1, 2])
def test_groups_come_and_go_under_sirtakirun(np: int, program: Path) -> None:
    done = launch(np, str(program), limit=LIMIT_SECONDS, warm=True)
    assert results(done.stdout) == [f"RESULT {rank} {np} {np}" for rank in range(np)], done.stdout
    assert done.returncode == 0


def test_groups_come_and_go_under_torchrun(program: Path) -> None:
    output = with_torchrun(2, program)
    assert results(output) == ["RESULT 0 2 2", "RESULT 1 2 2"], output


def test_groups_come_and_go_under_mpirun(program: Path) -> None:
    output = run_all(str(program), [as_open_mpi(rank, 2) for rank in range(2)])
    assert results(output) == ["RESULT 0 2 2", "RESULT 1 2 2"], output


@pytest.mark.parametrize("program", [IMPORTED], indirect=True)
def test_an_import_does_where_torch_loads_no_backends(program: Path) -> None:
    output = with_torchrun(2, program, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert results(output) == ["RESULT 0 2 2", "RESULT 1 2 2"], output


SPAWNED = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, path):
    dist.init_process_group("sirtaki", init_method=f"file://{path}", rank=rank, world_size=2)
    total = torch.full((1,), rank + 1.0)
    dist.all_reduce(total)
    sys.stdout.write(f"RESULT {rank} {int(total)}\\n")
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""


@pytest.mark.parametrize("program", [SPAWNED], indirect=True)
def test_processes_without_a_launcher_meet_in_torchs_store(program: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "store")],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert results(done.stdout) == ["RESULT 0 3", "RESULT 1 3"], done.stdout + done.stderr


# Programs for torchrun, which sirtakirun starts as they are.
FOR_TORCHRUN = """
import os, sys, torch, torch.distributed as dist
rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
assert int(os.environ["LOCAL_WORLD_SIZE"]) == size and os.environ["GROUP_RANK"] == "0"
assert int(os.environ["MASTER_PORT"]) > 0 and os.environ["MASTER_ADDR"]
if sys.argv[1] == "given":
    dist.init_process_group("gloo", rank=rank, world_size=size)
elif sys.argv[1] == "reversed":
    try:
        dist.init_process_group("gloo", rank=size - 1 - rank, world_size=size)
    except ValueError as error:
        sys.exit("RESULT " + str(error))
else:
    if sys.argv[1] == "removed":
        del os.environ["WORLD_SIZE"], os.environ["MASTER_PORT"]
    if sys.argv[1] == "address":
        os.environ["MASTER_ADDR"] = "localhost"
    dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
sys.stdout.write(f"RESULT {rank} {dist.get_rank()} {local} {int(total)}\\n")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("program", [FOR_TORCHRUN], indirect=True)
@pytest.mark.parametrize("how", ["environment", "given", "removed", "address"])
def test_programs_for_torchrun_run_as_they_are(program: Path, how: str) -> None:
    done = launch(2, str(program), how, limit=LIMIT_SECONDS, warm=how != "environment")
    assert results(done.stdout) == ["RESULT 0 0 0 2", "RESULT 1 1 1 2"], done.stdout


@pytest.mark.parametrize("program", [FOR_TORCHRUN], indirect=True)
def test_an_elastic_job_says_that_groups_of_torch_are_not(program: Path) -> None:
    done = launch(2, str(program), "given", limit=LIMIT_SECONDS, options=("--elastic", "1:"), warm=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("programs of torch.distributed end with the first lost rank") == 1, done.stdout


@pytest.mark.parametrize("program", [FOR_TORCHRUN], indirect=True)
def test_other_ranks_than_the_launchers_are_an_error_and_no_hang(program: Path) -> None:
    done = launch(2, str(program), "reversed", limit=LIMIT_SECONDS, warm=True)
    assert "is rank 1 of 2, and sirtakirun has started rank 0 of 2" in done.stdout
    assert done.returncode == 1


# Each rank has processes of its own, as many as there are ranks.
NESTED = """
import os, socket, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, backend, port, outer):
    if backend == "gloo":
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
        dist.init_process_group(backend, rank=rank, world_size=2)
    else:
        dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    total = torch.full((1,), outer + 1.0)
    dist.all_reduce(total)
    sys.stdout.write(f"RESULT {outer} {rank} {int(total)}\\n")
    dist.destroy_process_group()
if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (sys.argv[1], port, int(os.environ["RANK"])), nprocs=2)
"""


@pytest.mark.parametrize("program", [NESTED], indirect=True)
@pytest.mark.parametrize("backend", ["gloo", "sirtaki"])
def test_groups_of_processes_within_ranks_meet_on_their_own(program: Path, backend: str) -> None:
    done = launch(2, str(program), backend, limit=LIMIT_SECONDS)
    assert results(done.stdout) == ["RESULT 0 0 2", "RESULT 0 1 2", "RESULT 1 0 4", "RESULT 1 1 4"], done.stdout


#: Each rank starts programs of its own, as many as there are ranks, which get its variables.
STARTING = """
import os, socket, subprocess, sys
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
started = [subprocess.Popen([*sys.argv[1:], str(rank)], env={**os.environ, **own}) for rank in range(2)]
sys.exit(max(program.wait() for program in started))
"""
STARTED = """
import os, sys, torch, torch.distributed as dist
rank, outer = int(sys.argv[1]), int(os.environ["RANK"])
dist.init_process_group("sirtaki", rank=rank, world_size=2)
total = torch.full((1,), outer + 1.0)
dist.all_reduce(total)
sys.stdout.write(f"RESULT {outer} {rank} {int(total)}\\n")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("program", [STARTING], indirect=True)
def test_groups_of_programs_that_ranks_start_meet_at_their_own_port(program: Path, tmp_path: Path) -> None:
    started = tmp_path / "started.py"
    started.write_text(STARTED)
    done = launch(2, str(program), *pool().command((str(started),), environment()), limit=LIMIT_SECONDS)
    assert results(done.stdout) == ["RESULT 0 0 2", "RESULT 0 1 2", "RESULT 1 0 4", "RESULT 1 1 4"], done.stdout


BESIDE = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
told = []
if dist.get_rank() == 0:
    try:
        dist.new_group([0], backend="sirtaki", use_local_synchronization=True)
    except NotImplementedError as error:
        told.append("Make one of all" in str(error))
for ranks in (None, [0, 1]):
    group = dist.new_group(ranks, backend="sirtaki")
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    told.append(int(total))
    dist.destroy_process_group(group)
sys.stdout.write(f"RESULT {dist.get_rank()} {told}\\n")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("program", [BESIDE], indirect=True)
def test_a_group_of_ours_beside_gloos(program: Path) -> None:
    output = with_torchrun(2, program)
    assert results(output) == ["RESULT 0 [True, 2, 2]", "RESULT 1 [2, 2]"], output


# Ranks that record every value that passes through the store.
WATCHED = """
import sys, torch.distributed as dist, torch.multiprocessing as mp
from sirtaki import _torchrun
class Watched:
    def __init__(self, store):
        self.store, self.seen = store, []
    def set(self, key, value):
        self.seen.append(value)
        self.store.set(key, value)
    def get(self, key):
        value = self.store.get(key)
        self.seen.append(value.decode())
        return value
def work(rank, path):
    store = Watched(dist.FileStore(path, 3))
    job = _torchrun.meet_in(store, "place", rank, 3, "127.0.0.1")
    again = _torchrun.meet_in(store, "place", rank, 3, "127.0.0.1")
    clear = any(job.secret in text for text in store.seen)
    sys.stdout.write(f"RESULT {rank} {job.secret} {clear} {len(set(store.seen)) > 2} {again == job}\\n")
if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=3)
"""


@pytest.mark.parametrize("program", [WATCHED], indirect=True)
def test_the_secret_is_not_readable_in_torchs_store(program: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "store")],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    told = [line.split() for line in results(done.stdout)]
    assert [line[1] for line in told] == ["0", "1", "2"], done.stdout + done.stderr
    assert len({line[2] for line in told}) == 1, "all have the same secret"
    assert len(told[0][2]) == 64
    assert [line[3:] for line in told] == [["False", "True", "True"]] * 3


WRONG = """
import torch, torch.distributed as dist, sirtaki
sirtaki.init()
store = dist.HashStore()
try:
    dist.init_process_group("sirtaki", store=store, rank=1 - sirtaki.rank(), world_size=2)
except ValueError as error:
    print("RESULT", error)
"""


@pytest.mark.parametrize("program", [WRONG], indirect=True)
def test_another_rank_than_the_launchers_is_refused(program: Path) -> None:
    told = results(launch(2, str(program), limit=LIMIT_SECONDS, warm=True).stdout)
    assert len(told) == 2
    assert "told that this is rank 0 of 2, and Sirtaki that it is rank 1 of 2" in told[0]


# The second rank kills itself in the middle of backward, while the others wait in the C++ code of torch.
DYING = """
import os, signal, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("sirtaki")
rank = dist.get_rank()
begin = time.monotonic()
def first() -> None:
    dist.all_reduce(torch.ones(1000))
    dist.barrier()
def die(*_) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
try:
    first()
    if sys.argv[1] == "ddp":
        model = DistributedDataParallel(torch.nn.Linear(500, 500))
        loss = model(torch.ones(1, 500)).sum()
        loss.register_hook(die)
        begin = time.monotonic()
        loss.backward()
    else:
        die()
        begin = time.monotonic()
        first()
except RuntimeError as error:
    sys.stdout.write(f"SURVIVOR {rank} {time.monotonic() - begin:.2f} {' '.join(str(error).split())}\\n")
    sys.stdout.flush()
    sys.exit(3)
"""


@pytest.mark.parametrize("program", [DYING], indirect=True)
@pytest.mark.parametrize("how", ["ddp", "all_reduce"])
def test_survivors_of_a_killed_rank_raise_and_name_it(program: Path, how: str) -> None:
    done = launch(3, str(program), how, limit=LIMIT_SECONDS, warm=True)
    told = [line[line.index("SURVIVOR") :].split() for line in done.stdout.splitlines() if "SURVIVOR" in line]
    assert sorted(words[1] for words in told) == ["0", "2"], done.stdout
    for words in told:
        assert float(words[2]) < 5.0
        assert "rank 1" in " ".join(words[3:])
        # A rank that is behind waits in an earlier operation of the same program.
        assert re.search(r"(all_reduce|broadcast|barrier) \(call \d+ of group", " ".join(words[3:])), words
    assert done.returncode != 0


# The first rank waits in the C++ code of torch; the second is alive but never joins.
LATE = """
import datetime, sys, threading, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("sirtaki", timeout=datetime.timedelta(seconds=2))
model = DistributedDataParallel(torch.nn.Linear(5, 5))
if dist.get_rank() == 1:
    threading.Event().wait(60)
try:
    model(torch.ones(1, 5)).sum().backward()
except RuntimeError as error:
    sys.stdout.write(f"RESULT {' '.join(str(error).split())}\\n")
    sys.stdout.flush()
    sys.exit(3)
"""


@pytest.mark.parametrize("program", [LATE], indirect=True)
def test_the_groups_timeout_ends_a_backward_pass_that_a_rank_never_joins(program: Path) -> None:
    told = results(launch(2, str(program), limit=LIMIT_SECONDS, warm=True).stdout)
    assert len(told) == 1
    assert "all_reduce (call" in told[0]
    assert "is not over after 2 s" in told[0]


LONG = """
import datetime, torch.distributed as dist, sirtaki
dist.init_process_group("sirtaki", timeout=datetime.timedelta(hours=2))
print("RESULT", sirtaki.basics.option("control.stall_fail"))
"""


@pytest.mark.parametrize("program", [LONG], indirect=True)
def test_a_long_timeout_of_the_group_is_the_runtimes_too(program: Path) -> None:
    assert results(launch(2, str(program), limit=LIMIT_SECONDS, warm=True).stdout) == ["RESULT 2h"] * 2


def test_the_example_trains_unchanged_with_the_options_of_the_launcher() -> None:
    program = (str(ROOT / "examples/ddp_fashion_mnist.py"), "--backend", "sirtaki", "--unchanged", "--steps", "20")
    options = ("--compression", "int8", "--local-updates", "4")
    done = launch(2, *program, limit=LIMIT_SECONDS, options=options, warm=True)
    assert done.returncode == 0, done.stdout
    assert re.search(r"test accuracy [\d.]+%\n", done.stdout), done.stdout
    assert re.search(r"^.*  merges +\d+ in \d+ rounds", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize(
    ("hosts", "name_leads_to", "given", "expected"),
    [
        (2, "127.0.1.1", None, "eth7"),
        (2, "192.0.2.7", None, None),
        (2, "127.0.1.1", "ib0", "ib0"),
        (1, "127.0.1.1", None, None),
    ],
)
def test_gloo_is_led_past_the_loopback(
    monkeypatch: pytest.MonkeyPatch, hosts: int, name_leads_to: str, given: str | None, expected: str | None
) -> None:
    from sirtaki.torch.distributed import meeting

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if given is not None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", given)
    monkeypatch.setattr(meeting.basics, "cross_size", lambda: hosts)
    monkeypatch.setattr(meeting, "_address", lambda: "192.0.2.1")
    monkeypatch.setattr(meeting, "interface_of", lambda _: "eth7")
    monkeypatch.setattr(meeting.socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", (name_leads_to, 0))])
    meeting.lead_gloo()
    assert os.environ.get("GLOO_SOCKET_IFNAME") == expected


def test_the_interface_of_an_address_is_found() -> None:
    from sirtaki.torch.distributed.meeting import interface_of

    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.1") is None
    if Path("/proc/net/if_inet6").exists() and " lo\n" in Path("/proc/net/if_inet6").read_text():
        assert interface_of("::1") == "lo"
