"""A release has a section of CHANGELOG.md and a clean tree; hosted CI runs targets that exist."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import release  # noqa: E402

TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with a version, its section and one commit."""
    (tmp_path / "CMakeLists.txt").write_text("project(sirtaki VERSION 1.2.3\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 1.2.3, unreleased\n")
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True)
    return tmp_path


def test_this_version_has_a_section() -> None:
    assert f"\n## {release.version_of(ROOT)}, " in (ROOT / "CHANGELOG.md").read_text()


def test_a_release_needs_a_section_and_a_clean_tree(clone: Path) -> None:
    assert release.problems(clone, release.version_of(clone)) == []
    (clone / "CHANGELOG.md").write_text("# Changes\n")
    texts = release.problems(clone, "1.2.3")
    assert "no section" in texts[0]
    assert "not committed" in texts[1]


def test_the_site_is_packed_with_digests(tmp_path: Path) -> None:
    site, dist = tmp_path / "site", tmp_path / "dist"
    for folder in (site, dist):
        folder.mkdir()
    (site / "index.html").write_text("home")
    made = release.stage_site(site, dist, "1.2.3")
    with tarfile.open(made) as archive:
        assert "sirtaki-site-1.2.3/index.html" in archive.getnames()
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    assert release.write_digests(dist) == f"{digest}  {made.name}\n" == (dist / "SHA256SUMS").read_text()


def test_steps_and_hosted_ci_run_targets_that_exist() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if step.get("run", "").startswith("make ")]
    assert {run.split()[1] for run in runs} == {"test", "docs"}
    made = [command for command in release.steps("2").values() if command[0] == "make"]
    assert {command[2] for command in made} | {run.split()[1] for run in runs} <= TARGETS
