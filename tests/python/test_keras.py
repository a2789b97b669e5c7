"""The adapter for Keras on TensorFlow and on torch; one job for each back end."""

from __future__ import annotations

import pytest
from rank_support import case_names, check_case


@pytest.mark.parametrize("case", case_names("keras.keras_cases"))
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_keras(backend: str, case: str) -> None:
    check_case("keras.keras_cases", 2, case, variables=(("KERAS_BACKEND", backend),))


@pytest.mark.parametrize("case", case_names("keras.keras_more_cases"))
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_more_of_keras(backend: str, case: str) -> None:
    check_case("keras.keras_more_cases", 2, case, variables=(("KERAS_BACKEND", backend),))


@pytest.mark.parametrize("case", case_names("keras.keras_local_cases"))
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_local_updates_from_keras(backend: str, case: str) -> None:
    check_case("keras.keras_local_cases", 2, case, variables=(("KERAS_BACKEND", backend),))


@pytest.mark.parametrize("case", case_names("keras.keras_local_more_cases"))
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_more_of_local_updates_from_keras(backend: str, case: str) -> None:
    check_case("keras.keras_local_more_cases", 2, case, variables=(("KERAS_BACKEND", backend),))


@pytest.mark.parametrize("case", case_names("keras.keras_local_state_cases"))
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_state_of_optimizers_of_keras(backend: str, case: str) -> None:
    check_case("keras.keras_local_state_cases", 2, case, variables=(("KERAS_BACKEND", backend),))


@pytest.mark.parametrize("case", case_names("keras.keras_elastic_cases"))
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_elastic_states_of_keras(backend: str, case: str) -> None:
    check_case("keras.keras_elastic_cases", 3, case, variables=(("KERAS_BACKEND", backend),))


@pytest.mark.parametrize("case", case_names("keras.keras_accuracy_cases"))
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_accuracy_of_keras(backend: str, case: str) -> None:
    check_case("keras.keras_accuracy_cases", 4, case, variables=(("KERAS_BACKEND", backend),))
