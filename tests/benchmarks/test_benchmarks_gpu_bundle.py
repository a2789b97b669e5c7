"""The bundle of packages for a GPU machine without network, and builds that use it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.gpu import bundle
from benchmarks.gpu.build import Build
from benchmarks.gpu.keeper import Commands


def test_of_a_package_only_what_is_needed_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ("/usr/include/x.h", "/lib/a/libx.so.1", "/usr/lib/a/libcrypto.a", "/usr/share/doc/x", "/usr/lib/a/x.pc")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    query = tmp_path / "dpkg-query"
    query.write_text(f"#!/bin/sh\nprintf '%s\\n' {' '.join(listed)}\n")
    query.chmod(0o755)
    assert [str(path) for path in bundle.package_files("x")] == ["/usr/include/x.h", "/usr/lib/a/libx.so.1"]
    query.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(bundle.BundleError, match="x is not installed"):
        list(bundle.package_files("x"))


def test_a_bundle_is_small_and_whole(tmp_path: Path) -> None:
    folder, there = tmp_path / "packages", tmp_path / "there"
    archive = folder / bundle.ARCHIVE
    assert bundle.make(folder) == archive.stat().st_size < bundle.LIMIT_BYTES
    bundle.unpack(folder, there)
    for name in (
        "boost/asio/buffer.hpp",
        "gloo/context.h",
        "hwy/highway.h",
        "toml++/toml.h",
        "xxhash.h",
        "gtest/gtest.h",
    ):
        assert (there / "usr/include" / name).is_file(), name
    assert (there / bundle.CMAKE_FILE).is_file()
    assert (there / "python/nanobind/cmake/nanobind-config.cmake").is_file()
    assert len(list((there / "usr/share/datasets/fashion-mnist").glob("*.gz"))) == 4
    assert [path for path in there.rglob("*") if not path.exists()] == []


def test_a_bundle_is_replaced_and_other_files_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "PACKAGES", ())
    folder = tmp_path / "packages"
    bundle.make(folder)
    (folder / "old").touch()
    bundle.make(folder)
    assert [path.name for path in folder.iterdir()] == [bundle.ARCHIVE]
    (folder / bundle.ARCHIVE).rename(folder / "mine")
    with pytest.raises(bundle.BundleError, match="holds something else"):
        bundle.make(folder)


def test_the_repository_leaves_room_for_a_bundle() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=bundle.ROOT, capture_output=True, text=True, check=False)
    files = [bundle.ROOT / name for name in listed.stdout.split("\0") if name]
    assert sum(path.lstat().st_size for path in files if path.is_file()) < bundle.TREE_BYTES
    assert bundle.LIMIT_BYTES + bundle.TREE_BYTES <= 60 * 2**20


def test_a_bundle_that_cannot_travel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "PACKAGES", ())
    monkeypatch.setattr(bundle, "LIMIT_BYTES", 2**10)
    with pytest.raises(bundle.BundleError, match="more than the 0 MiB"):
        bundle.make(tmp_path / "packages")
    assert not (tmp_path / "packages" / bundle.ARCHIVE).exists()


def test_a_library_that_the_machine_lacks_is_linked_to(tmp_path: Path) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/libplayed.so.7").touch()
    environment = Build(tmp_path / "build", tmp_path, Commands("", tmp_path / "log", 0.0)).environment()
    link = Path(environment["LD_LIBRARY_PATH"].split(":")[0]) / "libplayed.so.7"
    assert link.resolve() == tmp_path / "usr/lib/libplayed.so.7"
