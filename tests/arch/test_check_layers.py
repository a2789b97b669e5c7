"""The architecture checker finds each kind of violation, and only those."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from check_layers import LAYERS, check

HEADER = "// What it is for.\n#pragma once\n"


def rules_found(root: Path, files: dict[str, str]) -> list[tuple[str, str, int]]:
    """Returns (path, rule, line) of the problems in a tree made of `files`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [(p.path, p.rule, p.line) for p in check(root)]


def test_sound_tree_has_no_problem(tmp_path: Path) -> None:
    files = {
        "runtime/base/status.h": HEADER + "#include <string>\n",
        "runtime/base/status.cc": '#include "runtime/base/status.h"\n',
        "runtime/net/tcp/x.h": HEADER + '#include <boost/asio.hpp>\n#include "runtime/rendezvous/loop.h"\n',
        "runtime/rendezvous/loop.h": HEADER + '#include "runtime/base/status.h"\n',
        "runtime/engine/e.cc": '#include "runtime/net/tcp/x.h"\n',
        "adapters/python/core.cc": '#include "adapters/c/sirtaki.h"\n#include <nanobind/nanobind.h>\n',
        "adapters/c/sirtaki.h": "/* The C interface. */\n#ifndef SIRTAKI_H_\n#define SIRTAKI_H_\n#endif\n",
        "tests/unit/x_test.cc": '#include "runtime/engine/anything.h"\n',
    }
    assert rules_found(tmp_path, files) == []


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("runtime/base/a.cc", "kernels/k.h"),
        ("kernels/a.cc", "scheduler/k.h"),
        ("compression/a.cc", "runtime/net/k.h"),
        ("scheduler/a.cc", "runtime/rendezvous/k.h"),
        ("runtime/control/a.cc", "runtime/rendezvous/k.h"),
        ("runtime/net/a.cc", "compression/k.h"),
        ("runtime/hub/a.cc", "runtime/net/k.h"),
        ("adapters/python/a.cc", "runtime/engine/k.h"),
        ("adapters/python/a.cc", "adapters/c/default_session.h"),
        ("launcher/a.cc", "runtime/engine/k.h"),
        ("examples/a.c", "runtime/base/k.h"),
    ],
)
def test_include_upwards_is_rejected(tmp_path: Path, path: str, target: str) -> None:
    files = {path: f'// x\n#include "{target}"\n', target: HEADER}
    assert rules_found(tmp_path, files) == [(path, "layer", 2)]


def test_no_row_names_a_later_one() -> None:
    above: set[str] = set()
    for folder, below in LAYERS.items():
        assert below <= above, folder
        above.add(folder)


@pytest.mark.parametrize("folder", sorted(LAYERS))
def test_no_layer_may_use_a_framework(tmp_path: Path, folder: str) -> None:
    path = f"{folder}/a.cc"
    assert rules_found(tmp_path, {path: "#include <torch/extension.h>\n"}) == [(path, "external", 1)]


@pytest.mark.parametrize(
    ("path", "header"),
    [
        ("runtime/engine/a.cc", "boost/asio.hpp"),
        ("runtime/control/a.cc", "openssl/hmac.h"),
        ("runtime/engine/a.cc", "gloo/allreduce.h"),
        ("runtime/base/config/config.cc", "toml++/toml.h"),
        ("compression/a.cc", "hwy/highway.h"),
        ("runtime/base/a.cc", "cuda_runtime.h"),
        ("adapters/c/a.cc", "Python.h"),
        ("runtime/engine/a.cc", "CLI/CLI.hpp"),
    ],
)
def test_library_outside_its_folder_is_rejected(tmp_path: Path, path: str, header: str) -> None:
    assert rules_found(tmp_path, {path: f"#include <{header}>\n"}) == [(path, "external", 1)]


def test_library_shown_through_another_header_is_rejected(tmp_path: Path) -> None:
    files = {
        "runtime/rendezvous/context.h": HEADER + "#include <boost/asio.hpp>\n",
        "runtime/engine/a.h": HEADER + '#include "runtime/net/tcp/b.h"\n',
        "runtime/net/tcp/b.h": HEADER + '#include "runtime/rendezvous/context.h"\n',
    }
    assert rules_found(tmp_path, files) == [("runtime/engine/a.h", "external", 1)]


@pytest.mark.parametrize(
    ("path", "rule", "code"),
    [
        ("runtime/engine/a.cc", "getenv", 'auto x = std::getenv("X");'),
        ("runtime/net/a.cc", "have", "#if HAVE_NCCL"),
        ("runtime/net/a.cc", "have", "#ifdef HAVE_NCCL"),
        ("runtime/net/a.cc", "have", "#if defined(X) && defined(HAVE_NCCL)"),
        ("scheduler/a.cc", "pure", "std::mutex m_;"),
        ("scheduler/a.cc", "pure", "#include <thread>"),
        ("compression/a.cc", "pure", "auto t = std::chrono::steady_clock::now();"),
        ("kernels/a.cc", "pure", "int fd = socket(1, 2, 3);"),
        ("runtime/control/a.cc", "pure", "std::random_device device;"),
        ("tests/unit/a_test.cc", "sleep", "std::this_thread::sleep_for(ms);"),
        ("tests/python/test_a.py", "sleep", "time.sleep(1)"),
        ("runtime/net/a.cc", "sleep", "usleep(10);"),
        ("runtime/net/a.cc", "abort", "std::abort();"),
        ("adapters/c/a.cc", "abort", "std::terminate();"),
        ("runtime/net/a.cc", "global", "static int counter = 0;"),
        ("runtime/net/a.cc", "global", "  static std::map<int, Foo*> cache;"),
        ("runtime/net/a.cc", "global", "thread_local std::string last;"),
        ("kernels/a.cc", "global", "static float table[16];"),
        ("runtime/net/a.cc", "detach", "std::thread worker(f); worker.detach();"),
        ("runtime/net/a.cc", "new", "auto* p = new Foo();"),
        ("runtime/net/a.cc", "new", "delete p->next;"),
        ("runtime/net/a.cc", "unsafe", "auto* parts = std::localtime(&now);"),
        ("launcher/a.cc", "unsafe", 'setenv("A", "b", 1);'),
        ("runtime/net/a.cc", "todo", "// TODO later"),
        ("adapters/python/sirtaki/ops.py", "framework", "import torch"),
        ("adapters/python/sirtaki/torch/ops.py", "framework", "from tensorflow import x"),
        ("adapters/python/sirtaki/torch/ops.py", "defaults", "x = torch.empty(3)"),
        ("adapters/python/sirtaki/torch/ops.py", "defaults", "x = f(torch.tensor([1], dtype=torch.int64))"),
        ("adapters/python/sirtaki/torch/a/b.py", "defaults", "x = torch.zeros(2, device='cpu')"),
        ("adapters/python/sirtaki/keras/_torch.py", "defaults", "g = torch.Generator().manual_seed(1)"),
    ],
)
def test_what_must_be_absent_is_rejected(tmp_path: Path, path: str, rule: str, code: str) -> None:
    assert rules_found(tmp_path, {path: f"\n{code}\n"}) == [(path, rule, 2)]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("runtime/base/config/config_load.cc", 'auto x = std::getenv("X");'),
        ("runtime/net/a.cc", '// getenv("X") is not called here'),
        ("runtime/net/a.cc", 'log("call getenv(name), std::abort() and sleep(1)");'),
        ("runtime/net/a.cc", 'auto s = R"(std::abort(); "\n)";'),
        ("runtime/net/a.cc", "static const int kLimit = 3;"),
        ("runtime/net/a.cc", "static constexpr std::array kTable = {1};"),
        ("runtime/net/a.cc", "static int helper(int x) { return x; }"),
        ("runtime/net/a.cc", "  static Status ok() { return {}; }"),
        ("runtime/net/a.cc", "static_assert(sizeof(Header) == 24);"),
        ("runtime/net/a.cc", "Foo(const Foo&) = delete;"),
        ("runtime/net/a.cc", "return std::unique_ptr<Foo>(new Foo());"),
        ("runtime/net/a.cc", "::new (storage) Foo();"),
        ("runtime/net/a.cc", "visitor.detach();"),
        ("runtime/net/a.cc", "char quote = '\"'; int million = 1'000'000; // std::abort()"),
        ("runtime/net/a.cc", "/* std::abort();\n std::terminate(); */"),
        ("adapters/c/default_session.cc", "static std::unique_ptr<Session> session;"),
        ("adapters/python/sirtaki/torch/ops.py", "import torch"),
        ("adapters/python/sirtaki/torch/ops.py", "x = torch.full((2,), 1, dtype=torch.int8, device=d)"),
        ("adapters/python/sirtaki/torch/ops.py", "x = torch.empty(2, **how) + torch.empty_like(y)"),
        ("adapters/python/sirtaki/ops.py", "x = numpy.zeros(2)"),
        ("tests/python/test_a.py", "x = 1  # no sleep(1) here"),
        (
            "tests/python/test_a.py",
            "# lint: allow(sleep) the rank under test is late on purpose\ntime.sleep(1)",
        ),
    ],
)
def test_what_is_allowed_is_accepted(tmp_path: Path, path: str, code: str) -> None:
    assert rules_found(tmp_path, {path: f"{code}\n"}) == []


def test_waiver_needs_a_reason_and_its_own_rule(tmp_path: Path) -> None:
    files = {
        "tests/python/test_a.py": "time.sleep(1)  # lint: allow(sleep)\n",
        "tests/python/test_b.py": "time.sleep(1)  # lint: allow(new) because\n",
    }
    assert [path for path, _, _ in rules_found(tmp_path, files)] == sorted(files)


def test_waiver_does_not_excuse_a_layer(tmp_path: Path) -> None:
    files = {
        "runtime/base/a.cc": '#include "kernels/k.h"  // lint: allow(layer) because\n',
        "kernels/k.h": HEADER,
    }
    assert rules_found(tmp_path, files) == [("runtime/base/a.cc", "layer", 1)]


@pytest.mark.parametrize(
    ("path", "text", "rule"),
    [
        ("runtime/net/a.h", "#pragma once\n", "comment"),
        ("runtime/net/a.h", "// For x.\nint f();\n", "guard"),
        ("runtime/net/a.h", HEADER + "using namespace std;\n", "using"),
        ("runtime/net/a.cc", "//\n" * 601, "length"),
        ("runtime/new_layer/a.cc", "int x();\n", "layer"),
        ("runtime/net/a.cc", '#include "status.h"\n', "path"),
        ("runtime/net/a.cc", "using base::Rank;\nusing Ranks = int;\nRanks size; // Rank\n", "unused_using"),
        ("runtime/net/a.cc", "using Rank = base::Rank;\nusing result_type = int;\n", "unused_using"),
    ],
)
def test_shape_of_files_is_checked(tmp_path: Path, path: str, text: str, rule: str) -> None:
    assert [found for _, found, _ in rules_found(tmp_path, {path: text})] == [rule]


def test_own_header_comes_first(tmp_path: Path) -> None:
    files = {
        "runtime/net/a.h": HEADER,
        "runtime/net/a.cc": '#include <string>\n\n#include "runtime/net/a.h"\n',
    }
    assert rules_found(tmp_path, files) == [("runtime/net/a.cc", "own_header", 1)]


def test_a_large_class_is_rejected(tmp_path: Path) -> None:
    members = "".join(f"  std::map<int, int> m{i}_{{}};\n" for i in range(25))
    functions = "  void f(int a) { int local = a; }\n  bool g() const { return true; }\n"
    fits = HEADER + f"class A {{\n{functions}{members}}};\n"
    assert rules_found(tmp_path, {"runtime/base/a.h": fits}) == []
    more = fits.replace("class A {", "class A {\n  int more_ = 0;")
    assert rules_found(tmp_path, {"runtime/base/a.h": more}) == [("runtime/base/a.h", "class_size", 3)]
    long = HEADER + "class A {\n" + "  void f();\n" * 401 + "};\n"
    assert rules_found(tmp_path, {"runtime/base/a.h": long}) == [("runtime/base/a.h", "class_size", 3)]
