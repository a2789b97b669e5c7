"""The check of the machine code of CUDA kernels reads listings, and fails where it must."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import check_cuda_code as check

LISTING = """\
	.headerflags	@"EF_CUDA_SM90"
	.section	.text._Z3addPf,"ax",@progbits
.text._Z3addPf:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E.EF.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   LDG.E.EF.128 R8, desc[UR4][R2.64+0x200] ;
        /*0030*/               @P0 BRA `(.L_x_0) ;
        /*0040*/                   LDG.E.EF.128 R12, desc[UR4][R16.64] ;
        /*0050*/                   LDG.E.EF.128 R20, desc[UR4][R16.64+0x200] ;
        /*0060*/                   FADD R4, R4, R12 ;
.L_x_0:
        /*0070*/                   STG.E.EF.128 desc[UR4][R2.64], R4 ;
        /*0080*/                   EXIT ;
.text._Z4meanPf:
        /*0000*/                   CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div_s64) ;
        /*0010*/              @!P1 LDG.E R4, desc[UR4][R2.64] ;
        /*0020*/                   CALL.REL.NOINC `($__internal_1_$__cuda_sm3x_div_rn_noftz_f32_slowpath) ;
        /*0030*/                   EXIT ;
"""
ADD, MEAN = check.functions(LISTING).values()


def test_a_listing_is_read_block_by_block() -> None:
    assert list(check.functions(LISTING)) == ["_Z3addPf", "_Z4meanPf"]
    assert [[one.name.split(".")[0] for one in block] for block in ADD if block] == [
        ["LDC", "LDG", "LDG", "BRA"],
        ["LDG", "LDG", "FADD"],
        ["STG", "EXIT"],
    ]
    assert [one.name for block in MEAN for one in block] == ["CALL.REL.NOINC", "LDG.E", "CALL.REL.NOINC", "EXIT"]


def test_both_arrays_need_all_their_loads_in_one_go() -> None:
    assert check.loads_together("add<F, 8>", ADD) == ""
    assert check.loads_together("add<F, 16>", ADD) == "0 of 2 arrays have their 4 rows loaded in one go"


@pytest.mark.parametrize("between", ["FADD R4, R4, R12", "@P0 BRA `(.L_x_0)"])
def test_an_addition_or_a_jump_between_loads_is_noticed(between: str) -> None:
    second = LISTING.replace("        /*0050*/", f"        /*0048*/                   {between} ;\n        /*0050*/", 1)
    (blocks, _) = check.functions(second).values()
    assert check.loads_together("add<F, 8>", blocks) == "1 of 2 arrays have their 2 rows loaded in one go"


def test_divisions_of_64_bits_are_noticed_and_others_not() -> None:
    assert check.without_division("mean<F>", ADD) == ""
    assert check.without_division("mean<F>", MEAN) == "1 divisions of 64 bits"


def test_accesses_of_fewer_bytes_are_noticed() -> None:
    assert check.wide_accesses("add<F>", ADD) == ""
    assert check.wide_accesses("mean<F>", MEAN) == "no LDG and no STG of 16 bytes"


def test_a_rule_applies_to_the_kernels_of_its_name() -> None:
    code = {"scaled_add<Int8>": MEAN, "reduce_sources<F>": ADD, "other": MEAN}
    found, used = check.problems(code, "sm_90")
    assert found == ["scaled_add<Int8> (sm_90): 1 divisions of 64 bits"]
    assert used == {"scaled_add<*>", "reduce_sources<*>"}


def test_the_program_fails_where_a_rule_is_broken_or_has_no_kernel(tmp_path: Path) -> None:
    made = tmp_path / "scaled_cast/cuda.cu.o"
    made.parent.mkdir()
    made.touch()
    tools = {
        "cuobjdump": "touch a.1.sm_90.cubin",
        "nvdisasm": "printf '.text._ZN7sirtaki10scaled_addI4Int8EEvv:\\n/*0000*/ CALL `($_$__cuda_sm20_rem_u64) ;\\n'",
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    options = [word for name in tools for word in (f"--{name}", tmp_path / name)]
    command = [sys.executable, check.__file__, *options, f"x.cc.o;{made};{tmp_path}/cast/cuda.cu.o"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "scaled_add<Int8> (sm_90): 1 divisions of 64 bits" in done.stdout
    assert "no kernel is called reduce_sources<*>" in done.stdout
