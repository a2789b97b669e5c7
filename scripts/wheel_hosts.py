"""The first training of somebody who has only README.md: its commands on two hosts, by the clock.

Each host is a clean Debian 12 with Python and an ssh server, in a network namespace of its own. The program is one of
DistributedDataParallel for torchrun; the commands and the additions to the program are those of the text of README.md.
Copying files, and the login of alpha on beta (`ssh-copy-id`), are not timed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clean_system import Chroot, pip_environment

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/process"))

from launch_support import wait_until  # noqa: E402
from ssh_hosts import Hosts  # noqa: E402

README = ROOT / "README.md"
MAX_SECONDS = 600.0
MAX_LOSS = 0.3
RANKS = 4
LINK_MBIT = 100
SSHD = "mkdir -p /run/sshd && exec /usr/sbin/sshd -D -e -o UsePAM=no"
PROGRAM = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
inputs = torch.randn(4096, 20, generator=torch.Generator().manual_seed(1))
dataset = TensorDataset(inputs, (inputs.sum(dim=1) > 0).long())
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=32, sampler=sampler)
hidden = [torch.nn.Linear(20, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU()]
model = torch.nn.Sequential(*hidden, torch.nn.Linear(512, 2))
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(3):
    sampler.set_epoch(epoch)
    for samples, labels in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(samples), labels)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f} on rank {dist.get_rank()} of {dist.get_world_size()}")
dist.destroy_process_group()
"""


def section(readme: str, name: str) -> str:
    """Returns the text of a section of README.md."""
    return readme.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def commands(text: str, program: str) -> list[str]:
    """Returns the commands of a text that begin with a program, without their comments."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [re.sub(r"\s+#.*", "", line) for kind, block in blocks if not kind for line in block.splitlines()]
    return [line for line in lines if line.startswith(program + " ")]


def changed(program: str, text: str) -> str:
    """Returns a program with the additions of the first diff of a text.

    An import goes to the others, any other line behind the assignment that stands before it in the diff.
    """
    found = re.search(r"^```diff\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found is not None, "there is no diff"
    behind = "import torch"
    lines = program.splitlines()
    for line in found[1].splitlines():
        if not line.startswith("+"):
            behind = line[1:].partition("=")[0]
            continue
        starts = "import torch" if line.startswith("+import ") else behind
        last = max(at for at, own in enumerate(lines) if own.startswith(starts))
        lines.insert(last + 1, line[1:])
    return "\n".join(lines) + "\n"


def losses_of(out: str) -> list[float]:
    """Returns the losses that the program prints, those of the last epoch last."""
    return [float(loss) for loss in re.findall(rf"loss ([\d.]+) on rank \d of {RANKS}\b", out)]


@contextmanager
def two_hosts(systems: tuple[Path, Path], folder: Path) -> Iterator[tuple[Chroot, Chroot]]:
    """Joins two systems with ssh as the hosts alpha and beta; root of alpha logs in on beta by a key."""
    hosts = Hosts(folder)
    alpha = Chroot(systems[0], "alpha", hosts.inside(hosts.near))
    beta = Chroot(systems[1], "beta", hosts.inside(hosts.far))
    server = None
    try:
        hosts.join()
        # Debian's installer writes such a file: the own name leads to a loopback address.
        for own, name, other in ((alpha, "beta", hosts.far_address), (beta, "alpha", hosts.near_address)):
            own.write("/etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {own.host}\n{other} {name}\n")
        alpha.run("rm -rf ~/.ssh; mkdir -m 700 ~/.ssh; ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519")
        (beta.root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
        shutil.copy(alpha.root / "root/.ssh/id_ed25519.pub", beta.root / "root/.ssh/authorized_keys")
        key = (beta.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text()
        alpha.write("/root/.ssh/known_hosts", f"beta {key}")
        log = folder / "sshd.log"
        with log.open("wb") as out:
            server = subprocess.Popen(
                beta.argv(SSHD), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=beta.environment()
            )
        wait_until(lambda: "Server listening on ::" in log.read_text(), 30, "the ssh server listens")
        with hosts.shaped(LINK_MBIT, LINK_MBIT):
            yield alpha, beta
    finally:
        if server is not None:
            server.kill()  # unshare blocks SIGTERM; its end kills the processes below
            server.wait()
        hosts.stop()


class Clock:
    """The seconds of each step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Adds the time of its body to a step."""
        start = time.monotonic()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - start, 2)


def install(clock: Clock, host: Chroot, wheel: Path, torch: tuple[str, ...]) -> None:
    """Installs as README.md says, from the network of this machine; takes `torch` in the place of the word torch."""
    online = Chroot(host.root, host.host)
    text = section(README.read_text(), "Install")
    (python,) = commands(text, "python3")
    (pip,) = commands(text, "pip")
    named = next(word for word in pip.split() if word.endswith(".whl"))
    shutil.rmtree(host.root / "root/venv", ignore_errors=True)
    shutil.rmtree(host.root / "root/dist", ignore_errors=True)
    (host.root / "root/dist").mkdir()
    shutil.copy(wheel, host.root / "root/dist")
    pip = re.sub(r" torch$", " " + " ".join(torch), pip.replace(named, f"dist/{wheel.name}"))
    shutil.copy("/etc/resolv.conf", host.root / "etc/resolv.conf")
    with clock.step(f"install on {host.host}"):
        online.run(f"cd ~; {python}; {pip}", pip_environment(host.root))


def train(clock: Clock, alpha: Chroot, beta: Chroot) -> str:
    """Runs a program with the additions of README.md on both hosts, by its commands; returns the last output.

    Raises:
        RuntimeError: a command fails, or the ranks do not train.
    """
    use = section(README.read_text(), "Use it")
    check, training = commands(use, "sirtakirun")
    for host in (alpha, beta):
        host.write("/etc/resolv.conf", "")  # there is no server of names in the network of the two
        host.write(f"/root/{training.split()[-1]}", changed(PROGRAM, use))
    out = ""
    for step, command, word in (("check", check, "All is well."), ("training", training, "exposed communication")):
        with clock.step(step):
            out = alpha.run(f"cd ~; . ~/venv/bin/activate; {command}")
        if word not in out:
            raise RuntimeError(f"{command}: {out[-2000:]}")
    losses = losses_of(out)
    if len(losses) != 3 * RANKS or max(losses[-RANKS:]) > MAX_LOSS:
        raise RuntimeError(f"{training}: {out[-2000:]}")
    return out


def made_systems(folder: Path) -> tuple[Path, Path]:
    """Makes the systems of both hosts in a folder, if they are not there: Debian 12 with ssh."""
    alpha, beta = folder / "alpha", folder / "beta"
    Chroot(alpha).make("bookworm")
    if not (alpha / "usr/sbin/sshd").exists():
        Chroot(alpha).install("openssh-server openssh-client")
    if not (beta / "made").exists():
        shutil.rmtree(beta, ignore_errors=True)
        subprocess.run(["cp", "-a", str(alpha), str(beta)], check=True)
    return alpha, beta


def test(wheel: Path, folder: Path, torch: tuple[str, ...]) -> dict[str, Any]:
    """Returns the row of the result: the seconds of each step, and of all."""
    row: dict[str, Any] = {"wheel": wheel.name, "wheel_bytes": wheel.stat().st_size, "result": "failed"}
    clock = Clock()
    try:
        systems = made_systems(folder)
        with tempfile.TemporaryDirectory() as scratch, two_hosts(systems, Path(scratch)) as hosts:
            for host in hosts:
                install(clock, host, wheel, torch)
            out = train(clock, *hosts)
            row["network"] = f"two namespaces, {LINK_MBIT} Mbit/s"
            lines = re.findall(r"^\[0!\]   (\w[\w ]*?)  +(.*?)\s*$", out, re.MULTILINE)
            row["report"] = dict(lines[:7])
            code = "import sys, torch; print(sys.version.split()[0], torch.__version__)"
            python, found = hosts[0].run(f"~/venv/bin/python -c '{code}'").split()
            row["versions"] = {"python": python, "torch": found}
        row["seconds"] = {**clock.seconds, "all": round(sum(clock.seconds.values()), 2)}
        within = row["seconds"]["all"] < MAX_SECONDS
        row["result"] = "passed" if within else f"failed: more than {MAX_SECONDS:.0f} s"
    except (RuntimeError, OSError, StopIteration, subprocess.SubprocessError) as error:
        row["seconds"] = clock.seconds
        row["result"] = f"failed: {str(error)[-2000:]}"
    row["date"] = datetime.now(UTC).isoformat(timespec="seconds")
    return row
