"""Cases of tests/python/ranks on up to 4 ranks; one job for each module and number of ranks."""

from __future__ import annotations

import pytest
from rank_support import case_names, check_case

pytest.importorskip("torch")


@pytest.mark.parametrize("case", case_names("ops_cases"))
@pytest.mark.parametrize("np", [1, 2, 3])
def test_ops(np: int, case: str) -> None:
    check_case("ops_cases", np, case)


@pytest.mark.parametrize("case", case_names("dtype_cases"))
@pytest.mark.parametrize("np", [2, 3])
def test_dtypes(np: int, case: str) -> None:
    check_case("dtype_cases", np, case)


@pytest.mark.parametrize("case", case_names("matrix_cases"))
@pytest.mark.parametrize("np", [2, 3, 4])
def test_matrix(np: int, case: str) -> None:
    check_case("matrix_cases", np, case)


@pytest.mark.parametrize("case", case_names("error_cases"))
@pytest.mark.parametrize("np", [2, 3])
def test_errors(np: int, case: str) -> None:
    check_case("error_cases", np, case)


@pytest.mark.parametrize("case", case_names("set_cases"))
@pytest.mark.parametrize("np", [2, 3, 4])
def test_process_sets(np: int, case: str) -> None:
    check_case("set_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.set_optimizer_cases"))
@pytest.mark.parametrize("np", [3])
def test_optimizers_of_process_sets(np: int, case: str) -> None:
    check_case("torch.set_optimizer_cases", np, case)


@pytest.mark.parametrize("case", case_names("adasum_cases"))
@pytest.mark.parametrize("np", [2, 3, 4])
def test_adasum(np: int, case: str) -> None:
    check_case("adasum_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.batch_norm_cases"))
@pytest.mark.parametrize("np", [3])
def test_batch_norm(np: int, case: str) -> None:
    check_case("torch.batch_norm_cases", np, case)


@pytest.mark.parametrize("case", case_names("elastic_cases"))
@pytest.mark.parametrize("np", [1, 3])
def test_elastic_sampler(np: int, case: str) -> None:
    check_case("elastic_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.optimizer_cases"))
@pytest.mark.parametrize("np", [2, 3])
def test_optimizer(np: int, case: str) -> None:
    check_case("torch.optimizer_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.backward_cases"))
@pytest.mark.parametrize("np", [3])
def test_backward(np: int, case: str) -> None:
    check_case("torch.backward_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.unequal_cases"))
@pytest.mark.parametrize("np", [3])
def test_unequal_models(np: int, case: str) -> None:
    check_case("torch.unequal_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.compressor_cases"))
@pytest.mark.parametrize("np", [3])
def test_compressor(np: int, case: str) -> None:
    check_case("torch.compressor_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.compression_cases"))
@pytest.mark.parametrize("np", [3])
def test_compression(np: int, case: str) -> None:
    check_case("torch.compression_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.momentum_cases"))
@pytest.mark.parametrize("np", [3])
def test_momentum(np: int, case: str) -> None:
    check_case("torch.momentum_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.skip_cases"))
@pytest.mark.parametrize("np", [3])
def test_skip(np: int, case: str) -> None:
    check_case("torch.skip_cases", np, case, ("--compression-nonfinite", "skip"))


@pytest.mark.parametrize("case", case_names("torch.nonfinite_error_cases"))
@pytest.mark.parametrize("np", [3])
def test_nonfinite_error(np: int, case: str) -> None:
    check_case("torch.nonfinite_error_cases", np, case, ("--compression-nonfinite", "error"))


@pytest.mark.parametrize("case", case_names("torch.misuse_cases"))
@pytest.mark.parametrize("np", [2, 3])
def test_misuse(np: int, case: str) -> None:
    check_case("torch.misuse_cases", np, case)


@pytest.mark.parametrize("case", case_names("join_cases"))
@pytest.mark.parametrize("np", [1, 2, 4])
def test_join(np: int, case: str) -> None:
    check_case("join_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.forward_cases"))
@pytest.mark.parametrize("np", [3])
def test_forward(np: int, case: str) -> None:
    check_case("torch.forward_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.forward_use_cases"))
@pytest.mark.parametrize("np", [3])
def test_forward_use(np: int, case: str) -> None:
    check_case("torch.forward_use_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.forward_read_cases"))
@pytest.mark.parametrize("np", [3])
def test_forward_read(np: int, case: str) -> None:
    check_case("torch.forward_read_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.checkpoint_cases"))
@pytest.mark.parametrize("np", [3])
def test_checkpoints(np: int, case: str) -> None:
    check_case("torch.checkpoint_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.state_cases"))
@pytest.mark.parametrize("np", [3])
def test_state(np: int, case: str) -> None:
    check_case("torch.state_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.local_cases"))
@pytest.mark.parametrize("np", [4])
def test_local_updates(np: int, case: str) -> None:
    check_case("torch.local_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.local_optimizer_cases"))
@pytest.mark.parametrize("np", [3])
def test_optimizers_of_local_updates(np: int, case: str) -> None:
    check_case("torch.local_optimizer_cases", np, case)


@pytest.mark.parametrize("case", case_names("torch.gpu_cases"))
def test_gpu(case: str) -> None:
    check_case("torch.gpu_cases", 2, case)
