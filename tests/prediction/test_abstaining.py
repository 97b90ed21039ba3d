"""Risk and coverage: figures that can be checked by hand."""

from __future__ import annotations

import pytest
import torch

import bayesrnn


def test_the_loss_of_the_surest():
    uncertainty, loss = torch.tensor([0.3, 0.1, 0.4, 0.2]), torch.tensor([4.0, 1.0, 2.0, 3.0])
    curve = bayesrnn.risk_coverage(uncertainty, loss)
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([1, 2, 8 / 3, 2.5])  # losses 1, 3, 4, 2
    assert curve.oracle.tolist() == pytest.approx([1, 1.5, 2, 2.5])
    assert curve.random == 2.5
    assert curve.area == pytest.approx((1 + 2 + 8 / 3 + 2.5) / 4)
    assert curve.oracle_area == pytest.approx(7 / 4)
    assert (curve.at(0.5), curve.at(1.0), curve.at(0.01)) == (2, 2.5, 1)
    assert curve.threshold(0.5) == pytest.approx(0.2)
    assert (uncertainty <= curve.threshold(0.75)).sum() == 3


def test_equal_uncertainties_count_as_in_random_order():
    """Also if they happen to come in the order of their losses."""
    loss = torch.arange(1000.0)
    curve = bayesrnn.risk_coverage(torch.zeros(1000), loss)
    torch.testing.assert_close(curve.risk, torch.full((1000,), 499.5, dtype=torch.float64))
    two = bayesrnn.risk_coverage(torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0.0, 1, 4, 3]))
    assert two.risk.tolist() == pytest.approx([2, 2, 2, 2])  # means 2, 2 of the two groups


def test_random_order_is_the_mean_and_better_orders_are_below_it():
    generator = torch.Generator().manual_seed(0)
    difficulty = torch.rand(40, 50, generator=generator)
    wrong = torch.rand(40, 50, generator=generator) < difficulty
    good = bayesrnn.risk_coverage(difficulty, wrong)
    blind = bayesrnn.risk_coverage(torch.rand(40, 50, generator=generator), wrong)
    assert good.oracle_area < good.area < 0.6 * good.random
    assert blind.area == pytest.approx(blind.random, abs=0.05)
    assert good.random == pytest.approx(wrong.double().mean().item())


def test_a_short_representation():
    curve = bayesrnn.risk_coverage(torch.arange(4.0), torch.tensor([0, 0, 1, 1]))
    assert repr(curve) == (
        "RiskCoverage(4 predictions, mean loss 0.5, of the surest half 0;\n"
        "  area 0.208, oracle 0.208, random 0.5)"
    )


def test_bad_curves():
    with pytest.raises(ValueError, match=r"uncertainty has shape \(3,\), and loss \(3, 1\)"):
        bayesrnn.risk_coverage(torch.zeros(3), torch.zeros(3, 1))
    with pytest.raises(ValueError, match="not empty"):
        bayesrnn.risk_coverage(torch.zeros(0), torch.zeros(0))
    with pytest.raises(ValueError, match="nan"):
        bayesrnn.risk_coverage(torch.tensor([0.0, torch.nan]), torch.zeros(2))
    curve = bayesrnn.risk_coverage(torch.zeros(3), torch.zeros(3))
    for coverage in (0, 80):
        with pytest.raises(ValueError, match=f"coverage={coverage}"):
            curve.at(coverage)
