"""Stacks of models: which rows are finite."""

import pytest
import torch

from fedflux.engine import Stack


@pytest.mark.parametrize("bad", [[float("nan")], [float("inf")], [float("inf"), -float("inf")]])
def test_a_row_that_is_not_finite_is_found(bad: list[float]) -> None:
    values = torch.ones(4, 3, 5)
    values[2].view(-1)[: len(bad)] = torch.tensor(bad)
    steps = torch.full((4,), 2**62)  # BatchNorm's count
    assert Stack({"weight": values, "steps": steps}).finite().tolist() == [True, True, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_large_numbers_are_finite_though_their_sum_is_not(dtype: torch.dtype) -> None:
    values = torch.full((3, 8), torch.finfo(dtype).max, dtype=dtype)
    values[1, 4] = float("nan")
    assert Stack({"weight": values}).finite().tolist() == [True, False, True]
