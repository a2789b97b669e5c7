"""The bundle of packages for a GPU machine without network, and builds that use it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.gpu import bundle
from benchmarks.gpu.build import Build


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
    folder = tmp_path / "packages"
    assert bundle.make(folder) == bundle.size_of(folder) < bundle.LIMIT_BYTES
    for name in (
        "boost/asio/buffer.hpp",
        "gloo/context.h",
        "hwy/highway.h",
        "toml++/toml.h",
        "xxhash.h",
        "gtest/gtest.h",
    ):
        assert (folder / "usr/include" / name).is_file(), name
    assert (folder / "python/nanobind/cmake/nanobind-config.cmake").is_file()
    assert len(list((folder / "usr/share/datasets/fashion-mnist").glob("*.gz"))) == 4
    assert [path for path in folder.rglob("*") if not path.exists()] == []
    # A bundle is replaced in its own folder; a folder with other files is refused.
    (folder / "usr/include/old.h").touch()
    assert bundle.make(folder) == bundle.size_of(folder)
    assert not (folder / "usr/include/old.h").exists()
    (folder / "packages.cmake").unlink()
    with pytest.raises(bundle.BundleError, match="holds something else"):
        bundle.make(folder)


def test_a_bundle_that_cannot_travel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "PACKAGES", ())
    monkeypatch.setattr(bundle, "LIMIT_BYTES", 2**20)
    with pytest.raises(bundle.BundleError, match="more than the 1 MiB"):
        bundle.make(tmp_path / "packages")
    assert not (tmp_path / "packages").exists()


def test_a_library_that_the_machine_lacks_is_linked_to(tmp_path: Path) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/libplayed.so.7").touch()
    environment = Build(tmp_path / "build", tmp_path).environment()
    link = Path(environment["LD_LIBRARY_PATH"].split(":")[0]) / "libplayed.so.7"
    assert link.resolve() == tmp_path / "usr/lib/libplayed.so.7"
