"""Every example, run under sirtakirun with the arguments of a short run: it exits with 0 and prints one result."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launch_support import ROOT, launch, warm

EXAMPLES = ROOT / "examples"
RANKS = 4
LIMIT_SECONDS = 120
ACCURACY = r"test accuracy [\d.]+%"
SECONDS = r", steps of [\d.]+ s$"
#: Arguments for a short run, and a pattern that occurs once in the output.
PROGRAMS: dict[str, tuple[tuple[str, ...], str]] = {
    "pytorch_transformer.py": (
        ("--steps", "10", "--local-updates", "4"),
        r"10 steps: \d\.\d+ nats a byte of unseen text, mode (local|alone)",
    ),
    "ddp_fashion_mnist.py": (("--steps", "20", "--compression", "int8", "--local-updates", "4"), ACCURACY + SECONDS),
    "fsdp_fashion_mnist.py": (
        ("--steps", "10", "--backend", "sirtaki", "--compression", "int8"),
        ACCURACY + " of 2 replicas" + SECONDS,
    ),
    "loop_fashion_mnist.py": (("--steps", "20", "--local-updates", "4"), ACCURACY + SECONDS),
    "pytorch_mnist.py": (("--steps", "10"), r"epoch 1: loss [\d.]+, test accuracy [\d.]+%"),
    "keras_fashion_mnist.py": (("--steps", "40"), r"test accuracy [5-9]\d\.\d+% on 4 ranks" + SECONDS),
    "tensorflow_loop.py": (("--steps", "100"), r"step 100: loss 0\.\d+"),
    "pytorch_allreduce.py": ((), r"gradient through an allreduce +\[4\.0, 4\.0\]"),
    "demo_overlap.py": (("--seconds", "0.5"), r'sync="forward": \d+ samples/s, [\d.]+ ms a step waited'),
    "demo_fashion_mnist.py": (("--global-batch", "4096", "--live", "600"), r"step +14/14"),
}
#: Lines that TensorFlow writes to standard error when it is imported.
#: Lines of TensorFlow, and of `auto`, since plans are off in these tests.
EXPECTED = re.compile(r"absl::InitializeLog|oneDNN|schedule\.replan is off")
#: Modules that other examples import.
MODULES = {"fashion_mnist.py", "demo_baselines.py"}
#: Tested by test_elastic_torch.py, test_horovod.py, test_torch_distributed.py and test_compat_trainers.py, each with
#: other options of the launcher.
ELSEWHERE = {
    "accelerate_fashion_mnist.py",
    "elastic_mnist.py",
    "horovod_style.py",
    "huggingface_fashion_mnist.py",
    "lightning_fashion_mnist.py",
    "ray_fashion_mnist.py",
}


#: Scripts to copy: each works without the other files of the folder, and without the images.
ALONE = ("elastic_mnist.py", "pytorch_mnist.py")
#: Programs of all doors, with the smallest differences from the programs that people have.
DOORS = ("accelerate", "ddp", "fsdp", "huggingface", "keras", "lightning", "loop", "ray")


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PROGRAMS) | MODULES | ELSEWHERE
    assert [path.name for path in EXAMPLES.glob("*.c")] == ["c_allreduce.c"]
    assert [path.name for path in EXAMPLES.glob("*.ipynb")] == ["notebook.ipynb"]


@pytest.mark.parametrize("door", DOORS)
def test_the_program_of_a_door_is_short(door: str) -> None:
    assert len((EXAMPLES / f"{door}_fashion_mnist.py").read_text().splitlines()) < 60


def test_every_door_has_a_program() -> None:
    programs = {path.name.partition("_")[0] for path in EXAMPLES.glob("?*_fashion_mnist.py")}
    assert programs - {"demo"} == set(DOORS)


@pytest.mark.parametrize("name", [*ALONE, "keras_fashion_mnist.py", "pytorch_transformer.py", "tensorflow_loop.py"])
def test_a_script_to_copy_imports_no_neighbour(name: str) -> None:
    modules = re.findall(r"^\s*(?:from|import) (\w+)", (EXAMPLES / name).read_text(), re.MULTILINE)
    assert "sirtaki" in modules
    assert {f"{module}.py" for module in modules} & {path.name for path in EXAMPLES.iterdir()} == set()


@pytest.mark.parametrize("name", ALONE)
def test_images_are_those_of_the_files_or_made(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = runpy.run_path(str(EXAMPLES / name))["images_of"]
    assert len(read("train")) == 60_000
    assert read("t10k")[0][1].item() == 9
    monkeypatch.setenv("FASHION_MNIST", str(tmp_path / "absent"))
    made = runpy.run_path(str(EXAMPLES / name))["images_of"]("train")
    assert made[13][0].shape == (1, 28, 28)
    assert made[13][1].item() == 3


@pytest.mark.parametrize("name", PROGRAMS)
def test_example_in_python(name: str) -> None:
    arguments, pattern = PROGRAMS[name]
    # The report at the end would go to standard error, which the test requires to be empty.
    quiet = {"SIRTAKI_REPORT_END": "false"}
    command = ("-np", str(RANKS), *warm(str(EXAMPLES / name), *arguments))
    done = launch(*command, timeout=LIMIT_SECONDS, env=quiet)
    assert done.code == 0, done.out + done.err
    assert len(re.findall(pattern, done.out, re.MULTILINE)) == 1, done.out + done.err
    assert [line for line in done.err.splitlines() if not EXPECTED.search(line)] == []


def test_example_in_c() -> None:
    program = ROOT / "build/release/adapters/c/c_allreduce"
    if not program.exists():
        pytest.skip("not built; `make cxx` does")
    done = launch("-np", str(RANKS), str(program))
    assert done.code == 0, done.err
    lines = [f"[{rank}] rank {rank} of {RANKS}: 1.5 2.5 3.5 4.5" for rank in range(RANKS)]
    assert sorted(done.out.splitlines()) == lines
