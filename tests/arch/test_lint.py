"""`make lint --changed` checks the files of a branch, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import lint
from source_tree import Tree


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with one commit on branch main, used as the root of lint."""
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "first.cc").write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    monkeypatch.setattr(lint.call, "__defaults__", (tmp_path,))
    return tmp_path


def commit(clone: Path, name: str) -> None:
    (clone / name).write_text("")
    git(clone, "add", ".")
    git(clone, "commit", "-q", "-m", name)


def test_changes_of_a_branch_are_those_since_it_left_main(clone: Path) -> None:
    assert lint.changed_files() == set()
    git(clone, "checkout", "-q", "-b", "work")
    commit(clone, "second.cc")
    commit(clone, "third.cc")
    (clone / "third.cc").write_text("more")
    (clone / "new.h").write_text("")
    assert lint.changed_files() == {"second.cc", "third.cc", "new.h"}


def test_changes_on_main_are_those_of_the_last_commit(clone: Path) -> None:
    commit(clone, "second.cc")
    commit(clone, "third.cc")
    assert lint.changed_files() == {"third.cc"}


def test_a_changed_header_is_seen_in_the_source_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree(ROOT)
    sources = [tree.sources[f"launcher/{name}.cc"] for name in ("cli", "hosts/hosts", "plan")]
    monkeypatch.setattr(lint, "tidy_units", lambda _tree: [("unity_0.cxx", sources, ["-DX"])])
    monkeypatch.setattr(lint, "tidy_version", lambda: "1")
    jobs = lint.changed_tidy_jobs(tree, frozenset({"launcher/cli.h", "launcher/plan.cc", "README.md"}))
    assert [job.path for job in jobs] == ["launcher/cli.cc", "launcher/plan.cc", "launcher/cli.cc and 2 more"]
    assert all("-DX" in job.command for job in jobs)


def test_sources_of_a_batch_with_a_name_in_common_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint, "PASSED", tmp_path / "lint")
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    for name in ("one", "other"):
        (tmp_path / f"runtime/{name}.cc").parent.mkdir(exist_ok=True)
        (tmp_path / f"runtime/{name}.cc").write_text("namespace {\nconstexpr int kBits = 64;\n}  // namespace\n")
    batch = tmp_path / "batch.cc"
    batch.write_text("".join(f'#include "{tmp_path}/runtime/{name}.cc"\n' for name in ("one", "other")))
    tree = Tree(tmp_path)
    sources = [tree.sources[f"runtime/{name}.cc"] for name in ("one", "other")]
    monkeypatch.setattr(lint, "tidy_units", lambda _tree: [(str(batch), sources, [])])
    monkeypatch.setattr(lint, "tidy_version", lambda: "1")
    *alone, together = lint.changed_tidy_jobs(tree, frozenset({"runtime/one.cc"}))
    assert [job.path for job in alone] == ["runtime/one.cc"]
    assert not lint.run_jobs("tool", [together], 1)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("def f(x):\n    return x\n", "missing a type annotation"),
        ("def f() -> int:\n    return ''\n", "Incompatible return value"),
    ],
)
def test_a_wrong_or_missing_type_is_named(
    clone: Path, capsys: pytest.CaptureFixture[str], source: str, text: str
) -> None:
    (clone / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for package in ("sirtaki", "sirtaki_backend"):
        (clone / "adapters/python" / package).mkdir(parents=True)
        (clone / "adapters/python" / package / "__init__.py").write_text("")
    tree = Tree(ROOT)
    assert lint.lint_types(tree, 1)
    (clone / "adapters/python/sirtaki/__init__.py").write_text(source)
    assert lint.lint_types(tree, 1, changed=frozenset({"first.cc"})), "no Python file has changed"
    assert not lint.lint_types(tree, 1)
    assert f"adapters/python/sirtaki/__init__.py:{source.count(chr(10)) - (text[0] == 'm')}: error:" in (
        capsys.readouterr().out
    )


def test_a_check_that_has_passed_is_remembered_for_a_month_after_its_last_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lint, "PASSED", tmp_path)
    used, unused, failing = (lint.Job(n, (n,), n, tmp_path) for n in ("true", "printf", "false"))
    assert lint.run_jobs("tool", [used], 1)
    assert not lint.run_jobs("tool", [failing], 1)
    (tmp_path / "tool/printf").touch()
    for job in (used, unused):
        os.utime(tmp_path / f"tool/{job.digest}", (0, 0))
    assert lint.run_jobs("tool", [used], 1)
    assert [path.name for path in (tmp_path / "tool").iterdir()] == ["true"]


def test_clones_share_what_has_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    for clone in ("one", "other"):
        (tmp_path / clone / "runtime").mkdir(parents=True)
        (tmp_path / clone / "runtime/x.cc").write_text("int x;\n")
        monkeypatch.setattr(lint, "ROOT", tmp_path / clone)
        tree = Tree(tmp_path / clone)
        flags = (f"-I{tmp_path / clone}/runtime", "-I", str(tmp_path / clone), "-isystem", "/usr/include")
        digests.add(lint.closure_digest(tree, [tree.sources["runtime/x.cc"]], *flags))
    assert len(digests) == 1
