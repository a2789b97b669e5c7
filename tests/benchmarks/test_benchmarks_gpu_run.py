"""benchmarks/gpu/run.sh with fake commands: its builds and runs, and the NCCL smoke test."""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.gpu import build, bundle, keeper, parts, run, smoke
from benchmarks.results import make_row
from benchmarks.statistics import estimate

ROW = make_row("of_bound", {"kernel": "played"}, estimate([0.9]), "ratio", "higher", target=0.85)
CMAKE = """case "$*" in
  *FAILING*) echo "no rule"; exit 1 ;;
  -S*) echo "configure $*" >>"$LOG"; env | grep -E '^(FASHION_MNIST|LD_LIBRARY_PATH|PYTHONPATH)=' >>"$LOG" ;;
  --build*) shift 4; echo "build $*" >>"$LOG" ;;
esac"""
PYTHON = f"""case "$*" in
  *"is_available()"*) exit 0 ;;
  *benchmarks.gpu.keeper*) exec {sys.executable} "$@" ;;
  *benchmarks.gpu.report*) cp "$ROWS" "$RESULTS/gpu_kernels.json" ;;
esac
echo "python $*" >>"$LOG"
"""


class Played:
    """Fake commands on a PATH of their own, and a log of their calls."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bin, self.build, self.results = folder / "bin", folder / "build", folder / "results"
        self.log = folder / "log"
        for made in (self.bin, self.results):
            made.mkdir()
        (folder / "rows").write_text(json.dumps({"rows": [asdict(ROW)]}))
        self.command("nvidia-smi", "echo 'GPU 0: played'")
        self.command("nvcc", "exit 1")
        self.command("cmake", CMAKE)
        self.command("python", PYTHON)
        self.command("compute-sanitizer", 'echo "sanitizer $2 $6" >>"$LOG"')
        self.program("tests/device/cuda_device_test", 'echo "kernels $*" >>"$LOG"')
        monkeypatch.setenv("PATH", f"{self.bin}:{os.environ['PATH']}")
        monkeypatch.setenv("LOG", str(self.log))
        monkeypatch.setenv("ROWS", str(folder / "rows"))
        monkeypatch.setenv("RESULTS", str(self.results))
        monkeypatch.setenv("FASHION_MNIST", str(folder))
        monkeypatch.setattr(sys, "executable", str(self.bin / "python"))
        monkeypatch.setattr(run, "DEFAULT_PACKAGES", folder / "nothing")

    def command(self, name: str, text: str) -> None:
        """Creates a fake command."""
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def program(self, name: str, text: str) -> None:
        """Creates a fake of a program that CMake would have built."""
        path = self.build / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(self, *arguments: str) -> int:
        """Runs the command under test; returns its exit status."""
        return run.main(["--build", str(self.build), "--results", str(self.results), *arguments])

    def asked(self) -> list[str]:
        """Returns the logged calls, one a line."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """Returns a fake machine with a GPU and all tools."""
    return Played(tmp_path, monkeypatch)


def test_all_is_built_then_compared_then_timed(played: Played, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    (played.build / "site").mkdir(parents=True)
    assert played.run("--quick") == 0
    asked = [line for line in played.asked() if not line.startswith(("configure", "PYTHONPATH", "FASHION"))]
    program = f"--program {played.build}/benchmarks/gpu"
    wrote = f"--quick --results {played.results}"
    assert asked == [
        "build --target sirtaki_cuda cuda_device_test nccl_smoke sirtaki_python cuda_timings",
        "kernels --gtest_brief=1",
        f"python -m benchmarks.gpu.smoke {program}/nccl_smoke",
        "python -m benchmarks.gpu.correctness",
        "python -m benchmarks.gpu.correctness --nccl",
        *(f"sanitizer {tool} --gtest_brief=1" for tool in parts.TOOLS),
        f"python -m benchmarks.gpu.report {program}/cuda_timings {wrote}",
        f"python -m benchmarks.gpu.training {wrote}",
    ]
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split()[-2:] == ["target", "met"]
    assert lines[1].split()[:2] == ["of_bound", "kernel=played"]
    assert lines[1].split()[-2:] == ["0.85", "yes"]
    assert [line.split()[:2] for line in lines[-6:]] == [[part.name, "ok"] for part in run.PARTS]


def test_a_part_that_fails_is_named_and_the_others_run(played: Played, capfd: pytest.CaptureFixture[str]) -> None:
    played.program("tests/device/cuda_device_test", "exit 3")
    assert played.run("--only", "kernels,nccl") == 1
    assert played.asked()[-1].startswith("python -m benchmarks.gpu.smoke")
    out = capfd.readouterr().out.splitlines()
    assert out[0].startswith("kernels  FAILED: ended with 3: ")
    assert out[1].startswith("nccl     ok")


def test_what_does_not_build_fails_alone(played: Played, capfd: pytest.CaptureFixture[str]) -> None:
    played.command("cmake", CMAKE.replace("FAILING", "cuda_timings"))
    assert played.run("--only", "kernels,timing") == 1
    captured = capfd.readouterr()
    assert captured.out.splitlines()[-2].startswith("kernels  ok")
    assert captured.out.splitlines()[-1] == "timing   FAILED: it does not build"
    assert "no rule" in captured.err


def test_the_build_is_for_the_gpus_of_the_machine(played: Played) -> None:
    played.command("nvidia-smi", "echo 'GPU 0: played'; case $1 in --query-gpu=*) printf '9.0\\n12.0\\n9.0\\n' ;; esac")
    assert build.architectures() == ["90", "120"]
    assert played.run("--only", "kernels") == 0
    assert "-DSIRTAKI_CUDA_ARCHITECTURES=90;120" in played.asked()[0]


def test_what_cannot_be_configured_ends_the_run(played: Played, capfd: pytest.CaptureFixture[str]) -> None:
    played.command("cmake", CMAKE.replace("FAILING", "-S"))
    assert played.run() == 1
    assert "--bundle makes a folder of packages" in capfd.readouterr().err


def test_without_the_python_package_the_kernels_are_tested_all_the_same(
    played: Played, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    played.command("cmake", CMAKE.replace("FAILING", "SIRTAKI_PYTHON=ON"))
    assert played.run("--only", "kernels,tensors") == 1
    captured = capfd.readouterr()
    assert captured.out.splitlines()[0].startswith("kernels  ok")
    assert captured.out.splitlines()[1] == "tensors  FAILED: it cannot be configured"
    assert "no rule" in captured.err


@pytest.mark.parametrize("tool", ["nvcc", "cmake"])
def test_what_builds_has_to_be_there(
    played: Played, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tool: str
) -> None:
    (played.bin / tool).unlink()
    monkeypatch.setenv("PATH", str(played.bin))
    assert played.run() == 1
    assert f"no {tool} on the PATH" in capfd.readouterr().err


def test_tools_that_are_not_there_are_left_out(
    played: Played, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (played.bin / "compute-sanitizer").unlink()
    played.command("python", PYTHON.replace("exit 0", "exit 1"))
    # A machine may have a real compute-sanitizer; the PATH hides it.
    monkeypatch.setenv("PATH", str(played.bin))
    assert played.run("--only", "sanitizer,training") == 0
    out = capfd.readouterr().out.splitlines()
    assert out == [
        "sanitizer  left out: compute-sanitizer is neither on the PATH nor beside nvcc",
        "training   left out: torch sees no GPU",
    ]
    # A part that is left out is not built.
    assert played.asked() == []


def test_packages_are_taken_from_a_folder(played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "files"
    (packages / "usr/share/datasets/fashion-mnist").mkdir(parents=True)
    (packages / "usr/lib/x").mkdir(parents=True)
    for name in ("libhwy.so.1", "libcrypto.so.3"):
        (packages / "usr/lib/x" / name).touch()
    (packages / "packages.cmake").touch()
    subprocess.run(["tar", "-czf", tmp_path / bundle.ARCHIVE, "-C", packages, "."], check=True)
    there = tmp_path / "there"
    there.touch()
    played.command(
        "ldconfig", f"echo ' libcrypto.so.3 (libc6,x86-64) => {there}'\necho ' libhwy.so.1 (libc6) => /gone'"
    )
    monkeypatch.delenv("FASHION_MNIST")
    assert played.run("--only", "kernels", "--packages", str(tmp_path)) == 0
    asked = played.asked()
    packages = played.build / "packages"
    assert f"-C {packages}/packages.cmake" in asked[0]
    assert "-DSIRTAKI_PYTHON=OFF" in asked[0]
    assert f"FASHION_MNIST={packages}/usr/share/datasets/fashion-mnist" in asked
    assert any(line.startswith(f"LD_LIBRARY_PATH={played.build}/lib") for line in asked)
    assert any(line.startswith(f"PYTHONPATH={played.build}/site:{packages}/python") for line in asked)
    # Libraries that the machine has are not linked to.
    assert [path.name for path in (played.build / "lib").iterdir()] == ["libhwy.so.1"]


def test_a_driver_that_hangs_ends_the_run(
    played: Played, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(keeper, "SECONDS_TO_ANSWER", 0.1)
    played.command("nvidia-smi", "exec tail -f /dev/null")
    assert played.run() == 2
    assert capfd.readouterr().err.startswith("run: no GPU: nvidia-smi has not answered in 0 s")
    assert build.architectures() == []
    assert played.asked() == []


def test_a_part_is_left_out_if_torch_hangs_in_the_driver(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    played.command("python", PYTHON.replace("exit 0", "exec tail -f /dev/null"))
    monkeypatch.setattr(keeper, "SECONDS_TO_ANSWER", 0.1)
    assert parts.without_torch({}).startswith("torch has not told in 0 s")


def test_a_folder_that_is_no_bundle_is_refused(played: Played, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no packages\.tar\.gz"):
        played.run("--packages", str(tmp_path))


@pytest.mark.parametrize("names", ["", "kernel", "kernels,speed"])
def test_parts_are_known_by_name(names: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="of kernels, nccl, tensors"):
        run.chosen(names)


# ---- ends ----------------------------------------------------------------------------------

#: A program that leaves a process in a session of its own, which keeps the output open, and a temporary file.
LEAVING = """setsid tail -f /dev/null &
touch "$TMPDIR/left"
echo "$TMPDIR" >"$LOG.folder"
echo started"""


def ended(process: subprocess.Popen[str]) -> str:
    """Returns the rest of the output, which ends once no process holds it any more; fails after a minute."""
    return process.communicate(timeout=60)[0]


def test_a_part_that_hangs_is_ended_with_all_that_it_started(
    played: Played, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hanging = parts.Part("kernels", ("sirtaki_cuda",), parts.PARTS[0].commands, 1)
    monkeypatch.setattr(run, "PARTS", (hanging,))
    played.program("tests/device/cuda_device_test", f"{LEAVING}\nexec tail -f /dev/null")
    assert played.run("--only", "kernels") == 1
    assert "kernels  FAILED: not done after 1 s" in capfd.readouterr().out
    assert not Path(Path(f"{played.log}.folder").read_text().strip()).exists()


@pytest.mark.parametrize("signal", ["KILL", "TERM", "INT", "HUP"])
def test_nothing_outlives_a_run_that_is_cut(played: Played, signal: str) -> None:
    played.program("tests/device/cuda_device_test", f"{LEAVING}\nexec tail -f /dev/null")
    arguments = ["--only", "kernels", "--build", str(played.build), "--results", str(played.results)]
    with subprocess.Popen(
        # The interpreter of the tests, because played.run() has replaced it here.
        [Path(sys.prefix) / "bin/python", "-m", "benchmarks.gpu.run", *arguments],
        cwd=run.ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stdout is not None
        assert select.select([running.stdout], [], [], 60)[0]
        assert running.stdout.readline() == "started\n"
        subprocess.run(["kill", f"-{signal}", str(running.pid)], check=True)
        ended(running)
    folder = Path(Path(f"{played.log}.folder").read_text().strip())
    assert not folder.exists()
    log = (played.results / run.LOG).read_text()
    assert log.splitlines()[-1] == "started"


def test_the_folder_of_a_run_lives_as_long_as_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with keeper.keeping():
        (made,) = tmp_path.iterdir()
        assert os.environ["TMPDIR"] == str(made)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_killed_at_its_start_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "benchmarks.gpu.keeper", "no such mark"]
        process = subprocess.Popen(command, cwd=run.ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, stdin=theirs)
    # Both ends are closed here, whether or not the keeper has written.
    assert process.wait(60) == 0
    assert list(tmp_path.iterdir()) == []
    # Nor is one made before there is a keeper.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError), keeper.keeping():
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_run_ends_in_time_and_tells_what_it_left_out(
    played: Played, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with keeper.keeping() as mark:
        commands = keeper.Commands(mark, tmp_path / "log", time.monotonic() + 0.1)
        assert commands.call(["tail", "-f", "/dev/null"], os.environ).startswith("not done after 0 s")
        plan = parts.Plan(played.build, played.results, quick=False)
        assert run.run_part(parts.PARTS[0], plan, os.environ, commands) == "left out: no time is left"
    assert played.run("--only", "kernels", "--minutes", "0") == 1
    assert "cannot be configured: not done after 0 s" in capfd.readouterr().err


def test_the_log_has_all_output_as_it_comes(played: Played) -> None:
    played.command("cmake", 'echo "cmake speaks"')
    played.program("tests/device/cuda_device_test", f'echo "kernels speak"; cp {played.results}/{run.LOG} "$LOG.then"')
    assert played.run("--only", "kernels") == 0
    then = Path(f"{played.log}.then").read_text()
    assert "GPU 0: played" in then
    assert "cmake speaks\n" in then
    log = (played.results / run.LOG).read_text()
    assert log.startswith(then.removesuffix("kernels speak\n"))
    assert log.splitlines()[-1].startswith("kernels  ok")
    # The next run adds to the log.
    assert played.run("--only", "kernels") == 0
    assert (played.results / run.LOG).read_text().startswith(log)


def test_a_bundle_is_made_on_any_machine(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    played.command("nvidia-smi", "exit 1")
    monkeypatch.setattr(bundle, "PACKAGES", ())
    assert run.main(["--bundle", str(tmp_path / "bundle")]) == 0
    assert f"MiB in {tmp_path / 'bundle'}; take it along" in capfd.readouterr().err
    assert run.main(["--bundle", str(played.results)]) == 0
    (played.results / bundle.ARCHIVE).rename(played.results / "mine")
    assert run.main(["--bundle", str(played.results)]) == 1
    assert "run: no bundle: " in capfd.readouterr().err


# ---- NCCL ----------------------------------------------------------------------------------


def played_rank(folder: Path, text: str) -> Path:
    """Creates a program in place of nccl_smoke."""
    program = folder / "rank"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return program


def test_ranks_are_hosts_of_their_own_that_meet_in_one_folder(tmp_path: Path) -> None:
    program = played_rank(tmp_path, 'echo "$1 $2 $3 $4 $NCCL_HOSTID $NCCL_SOCKET_IFNAME"; exit "$1"')
    (zero, first), (one, second) = smoke.run(program, "/x/libnccl.so.2", dict(os.environ))
    assert (zero, one) == (0, 1)
    assert first.split()[3:] == ["/x/libnccl.so.2", "sirtaki-0", "lo"]
    assert second.split()[3:] == ["/x/libnccl.so.2", "sirtaki-1", "lo"]
    assert first.split()[:3] == ["0", "2", second.split()[2]]


def test_a_rank_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "LIMIT_SECONDS", 0.1)
    ended = smoke.run(played_rank(tmp_path, "exec tail -f /dev/null"), "", dict(os.environ))
    assert [status for status, _ in ended] == [124, 124]


def test_the_command_fails_where_a_rank_does(tmp_path: Path) -> None:
    program = played_rank(tmp_path, 'echo "rank $1"; exit "$1"')
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.smoke", "--program", program],
        cwd=run.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "rank 0\nrank 1\n")
    assert done.stderr == "smoke: rank 1 ended with 1\n"
