"""Keras's adapter on TensorFlow and on torch; one job for each number of ranks and back end."""

from __future__ import annotations

import pytest
from rank_support import case_names, check_case

FIT = "keras_cases"
ALL = "keras_cases+keras_more_cases"


@pytest.mark.parametrize("case", case_names(ALL))
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_keras(backend: str, case: str) -> None:
    check_case(ALL, 2, case, variables=(("KERAS_BACKEND", backend),))


@pytest.mark.parametrize("case", case_names(FIT))
def test_keras_on_four_ranks(case: str) -> None:
    check_case(FIT, 4, case, variables=(("KERAS_BACKEND", "tensorflow"),))
