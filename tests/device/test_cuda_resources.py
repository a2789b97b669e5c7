"""The check of CUDA kernel resources reads listings, and fails where it must."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import check_cuda_resources as check

LISTING = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3addPf' for 'sm_90'
ptxas info    : Function properties for _Z3addPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 1 barriers, 16384 bytes smem
ptxas info    : Compile time = 35.674 ms
ptxas info    : Compiling entry function '_Z4takePf' for 'sm_90'
ptxas info    : Function properties for _Z4takePf
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 128 registers, used 0 barriers
"""
ADD = check.Usage("_Z3addPf", "sm_90", 30, 0, 16384, 0)
TAKE = check.Usage("_Z4takePf", "sm_90", 128, 16, 0, 12)


def test_reads_every_kernel_of_a_listing() -> None:
    assert check.parse_listing(LISTING) == [ADD, TAKE]


def test_a_listing_that_breaks_off_is_an_error() -> None:
    with pytest.raises(check.UnreadableError, match="_Z3addPf"):
        check.parse_listing(LISTING.partition("    0 bytes")[0])


def test_names_are_without_namespaces_and_parameters() -> None:
    text = (
        "void sirtaki::kernels::cuda::(anonymous namespace)::add<sirtaki::kernels::F<&(a(float))>, 4>(cuda::Sum, long)"
    )
    assert check.short_name(text) == "add<F<&(a(float))>, 4>"
    assert check.short_name("sirtaki::kernels::cuda::(anonymous namespace)::take(float*)") == "take"


def test_a_kernel_within_its_limits_is_no_problem() -> None:
    assert check.problems([ADD], [check.Limit("_Z3*", 30, 0, 16384)]) == []


@pytest.mark.parametrize(
    ("usage", "limit", "text"),
    [
        (ADD, check.Limit("_Z3*", 29, 0, 16384), "registers 30, at most 29"),
        (ADD, check.Limit("_Z3*", 30, 0, 16383), "shared 16384, at most 16383"),
        (TAKE, check.Limit("_Z4*", 128, 15, 0), "stack 16, at most 15"),
        (TAKE, check.Limit("_Z4*", 128, 16, 0), "12 bytes of spills"),
    ],
)
def test_a_kernel_over_a_limit_is_named(usage: check.Usage, limit: check.Limit, text: str) -> None:
    assert any(text in problem and usage.kernel in problem for problem in check.problems([usage], [limit]))


def test_the_limits_hold_where_the_kernels_are_tuned() -> None:
    older = check.Usage("_Z4takePf", "sm_75", 128, 16, 0, 12)
    assert check.problems([older], [check.Limit("_Z4*", 64, 0, 0)]) == []
    assert "0 rows" in check.problems([older], [])[0]


def test_every_kernel_needs_one_row_and_every_row_a_kernel() -> None:
    limit = check.Limit("_Z3*", 30, 0, 16384)
    assert "0 rows" in check.problems([TAKE], [])[0]
    assert "2 rows" in check.problems([ADD], [limit, check.Limit("*", 99, 99, 99999)])[0]
    assert check.problems([ADD], [limit, check.Limit("gone", 1, 1, 1)]) == ["no kernel is called gone"]
    assert check.problems([], []) == ["there is no kernel in any listing"]


def test_every_kernel_needs_code_for_every_real_architecture() -> None:
    both = [ADD, check.Usage("_Z3addPf", "sm_80", 30, 0, 16384, 0), TAKE]
    assert check.without_code(both, "80-real;90") == ["_Z4takePf: no code for sm_80"]
    assert check.without_code(both, "90-real;120-virtual") == []


def test_tables_have_comments_and_rows_and_nothing_else() -> None:
    assert check.parse_limits("# words\n\nadd<*> | 40 | 0 | 128\n") == [check.Limit("add<*>", 40, 0, 128)]
    with pytest.raises(check.UnreadableError, match="line 1"):
        check.parse_limits("add | many | 0 | 0\n")


def test_the_program_fails_where_a_limit_is_passed(tmp_path: Path) -> None:
    listing = tmp_path / "a.cu.o.resources"
    listing.write_text(LISTING)
    limits = tmp_path / "limits.txt"
    limits.write_text("add | 30 | 0 | 16384\ntake | 200 | 64 | 0\n")
    objects = f"x.cc.o;{str(listing).removesuffix('.resources')}"
    command = [sys.executable, check.__file__, "--limits", str(limits), objects]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "take (sm_90): 12 bytes of spills" in done.stdout
    listing.write_text(LISTING.replace("4 bytes spill stores, 8 bytes", "0 bytes spill stores, 0 bytes"))
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
