"""Set-up lists, metadata of the package and the error texts of the build, without an installation or a build."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).resolve().parents[2]
SETUP = str(ROOT / "scripts/setup.sh")

sys.path.insert(0, str(ROOT / "scripts"))

import clean_system  # noqa: E402
import wheel_build  # noqa: E402
import wheel_hosts  # noqa: E402
import wheel_test  # noqa: E402

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def listed(*parts: str) -> set[str]:
    done = subprocess.run([SETUP, "list", *parts], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """Returns the environment of a machine with Debian's tools and no package installed; apt-get fails."""
    for name in ("bash", "dirname", "awk", "cat", "id"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    for name, status in (("dpkg-query", 1), ("apt-get", 9)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    return {"PATH": str(tmp_path), "SIRTAKI_NO_APT": "1"}


def test_each_part_has_a_list() -> None:
    for part in ("build", "demo", "docs", "test", "lint", "compat"):
        assert all(re.fullmatch(r"[a-z0-9.+|-]+", name) for name in listed(part)), part
        assert listed(part), part


def test_the_demo_needs_no_tools_of_tests_and_lint() -> None:
    demo = listed("build", "demo")
    for name in ("openssh-server", "clang-tidy", "libgtest-dev", "iperf3"):
        assert name not in demo
        assert name in listed("test", "lint")


def test_the_site_needs_no_compiler() -> None:
    assert listed("docs") == {"python3", "python3-venv"}


def test_without_apt_one_line_names_the_missing_packages(bare: dict[str, str]) -> None:
    done = subprocess.run([SETUP, "demo"], check=False, capture_output=True, text=True, env=bare)
    line = done.stdout.splitlines()[0]
    assert line.startswith("setup: missing system packages (build demo), which SIRTAKI_NO_APT forbids to install: ")
    assert set(line.split(": ")[2].split()) == {name.rpartition("|")[2] for name in listed("build", "demo")}
    assert "apt" not in done.stderr


@pytest.mark.parametrize(("first", "wanted"), [("1.81.0-5", ["libboost1.81-dev"]), ("(none)", [])])
def test_the_first_package_that_the_release_has_is_installed(
    bare: dict[str, str], tmp_path: Path, first: str, wanted: list[str]
) -> None:
    # libboost-dev is installed, which serves where there is no libboost1.81-dev.
    # The policy is longer than a pipe holds.
    candidate = "printf '%s:\\n  Candidate: %s\\n' $2 $c; for i in {1..6000}; do echo '     a version'; done"
    for name, text in (
        ("dpkg-query", "#!/bin/bash\n[ ${!#} = libboost-dev ] && echo -n 'ii '\n"),
        ("apt-cache", f"#!/bin/bash\nc=1.0; [ $2 = libboost1.81-dev ] && c='{first}'\n{candidate}\n"),
        ("apt-get", '#!/bin/bash\necho "apt: $*"; [ "$1" = update ]\n'),
    ):
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for name in ("env", "sudo"):
        (tmp_path / name).symlink_to("/usr/bin/env")
    env = bare | {"SIRTAKI_NO_APT": ""}
    done = subprocess.run([SETUP, "build"], check=False, capture_output=True, text=True, env=env)
    chosen = done.stdout.splitlines()[-1].split()
    assert "g++" in chosen, done.stdout + done.stderr
    assert [name for name in chosen if "boost" in name] == wanted


def test_an_unknown_part_is_an_error() -> None:
    done = subprocess.run([SETUP, "tests"], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "unknown part 'tests'" in done.stderr
    done = subprocess.run([SETUP, "list", "all"], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "list takes build, demo, docs, test, lint and compat, not 'all'" in done.stderr


def test_the_version_has_one_place() -> None:
    assert "version" in PYPROJECT["project"]["dynamic"]
    place = PYPROJECT["tool"]["scikit-build"]["metadata"]["version"]
    assert re.search(place["regex"], (ROOT / place["input"]).read_text())


def test_extras_name_the_frameworks() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert {"torch", "tensorflow", "keras"} <= extras.keys()
    assert PYPROJECT["project"]["dependencies"] == ["cloudpickle"]


def test_wheels_cover_every_python_from_the_oldest_on() -> None:
    oldest = PYPROJECT["project"]["requires-python"].removeprefix(">=")
    rows = wheel_build.ROWS[wheel_build.NATIVE]
    assert rows[0] == (oldest,)
    stable = wheel_build.STABLE_ABI.removeprefix("cp3")
    assert min(int(version.split(".")[1]) for version in rows[-1]) == int(stable)


def test_a_python_gets_its_own_wheel_or_that_of_the_stable_abi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tags = ("cp310-cp310", "cp311-cp311", "cp312-abi3")
    for tag in tags:
        for arch in wheel_build.ROWS:
            (tmp_path / f"sirtaki-0.1.0-{tag}-{wheel_build.PLATFORM}_{arch}.whl").touch()
    monkeypatch.setattr(wheel_test, "DIST", tmp_path)
    for arch in wheel_build.ROWS:
        chosen = [wheel_test.wheel_for(version, arch).name for version in ("3.10", "3.11", "3.12", "3.14")]
        assert [next(tag for tag in tags if tag in name) for name in chosen] == [*tags, "cp312-abi3"]
        assert all(arch in name for name in chosen)
    with pytest.raises(SystemExit, match="make wheel ARCH=riscv64"):
        wheel_test.wheel_for("3.11", "riscv64")


def test_a_wheel_of_another_architecture_gets_its_headers_suffix_and_tag() -> None:
    settings, variables = wheel_build.foreign("aarch64", "3.11")
    assert settings["cmake.define.Python_INCLUDE_DIR"].endswith("/sysroot-aarch64/root/usr/include/python3.11")
    assert settings["cmake.define.SIRTAKI_ARCH"] == "aarch64"
    assert wheel_build.sysroot_of("aarch64") != wheel_build.sysroot_of(wheel_build.NATIVE)
    assert variables["SETUPTOOLS_EXT_SUFFIX"] == ".cpython-311-aarch64-linux-gnu.so"
    # The interpreter that runs the build takes its tag from this variable.
    code = "import sysconfig; print(sysconfig.get_platform())"
    env = os.environ | variables
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "linux-aarch64"


def test_qemu_runs_the_systems_of_other_architectures() -> None:
    assert {system.arch for system in wheel_test.SYSTEMS} == set(wheel_build.ROWS)
    for system in wheel_test.SYSTEMS:
        chroot = clean_system.Chroot(Path("/systems") / system.place, arch=system.arch)
        foreign = system.arch != wheel_build.NATIVE
        assert (system.place != system.suite) == foreign
        assert ("qemu_chroot.sh" in chroot.argv("true")[0]) == foreign


def test_qemu_without_a_user_namespace_says_so(tmp_path: Path) -> None:
    for name in ("qemu-aarch64-static", "unshare"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [str(clean_system.QEMU_CHROOT), str(tmp_path), "true"],
        check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("qemu_chroot: there is no user namespace: unshare has failed"), done.stderr


def test_the_last_installations_are_within_the_limits() -> None:
    rows = json.loads(wheel_test.RESULT.read_text())["rows"]
    architectures = {(s.name, s.python): s.arch for s in wheel_test.SYSTEMS}
    assert {(row["system"], row["python"]) for row in rows} == architectures.keys()
    for row in rows:
        assert row["result"] in ("passed", "library and launcher"), row
        assert f"{wheel_build.PLATFORM}_{architectures[row['system'], row['python']]}.whl" in row["wheel"]
        assert 0 < row["wheel_bytes"] <= wheel_build.MAX_BYTES
        assert (row["import_seconds"] or 0.0) < wheel_test.MAX_IMPORT_SECONDS


def test_the_last_stranger_trained_on_two_hosts_within_ten_minutes() -> None:
    hosts = json.loads(wheel_test.RESULT.read_text())[wheel_test.HOSTS]
    assert hosts["result"] == "passed"
    assert {"install on alpha", "install on beta", "check", "training", "all"} == hosts["seconds"].keys()
    assert hosts["seconds"]["all"] < wheel_hosts.MAX_SECONDS <= 600
    text = wheel_hosts.README.read_text().replace("\n", " ")
    said = re.search(r"takes less than (\d+) minutes with a program for `torchrun` \(\[measured\]", text)
    assert said is not None
    assert hosts["seconds"]["all"] < 60 * int(said[1])


def test_the_programs_of_wheels_start_outside_of_pytest() -> None:
    for name in ("wheel_build.py", "wheel_test.py"):
        done = subprocess.run(
            [sys.executable, ROOT / "scripts" / name, "--help"], check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_the_stranger_follows_the_text_of_the_readme() -> None:
    text = (
        "```\nsirtakirun -H a --check    # links\n```\n```diff\n+import added\n model = Wrapper(model)\n"
        " optimizer = Adam(model)\n+call(model, optimizer)\n```\n```\nsirtakirun -H a python train.py\n```\n"
    )
    assert wheel_hosts.commands(text, "sirtakirun") == ["sirtakirun -H a --check", "sirtakirun -H a python train.py"]
    program = "import torch\nimport torch.distributed\noptimizer = SGD(model)\nstep()\n"
    assert wheel_hosts.changed(program, text) == (
        "import torch\nimport torch.distributed\nimport added\noptimizer = SGD(model)\ncall(model, optimizer)\nstep()\n"
    )


def test_one_error_names_all_missing_libraries() -> None:
    done = subprocess.run(
        ["cmake", "-DSIRTAKI_GLOO=ON", "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",
         "-DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF", "-P", "cmake/SirtakiLibraries.cmake"],
        check=False, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PKG_CONFIG_LIBDIR": "/nothing"},
    )  # fmt: skip
    assert done.returncode != 0
    for package in ("libboost-dev", "libtomlplusplus-dev", "libxxhash-dev", "libhwy-dev", "libssl-dev", "libcli11-dev",
                    "libgloo-dev", "CMAKE_PREFIX_PATH"):  # fmt: skip
        assert package in done.stderr
