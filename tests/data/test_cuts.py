from __future__ import annotations

import pytest
import torch
from torch import nn

import bayesrnn


def test_tokens_come_in_order_each_target_once():
    tokens = torch.arange(101)
    cuts = bayesrnn.Cuts(tokens, num_streams=4, unroll=7)
    xs, ys = zip(*cuts, strict=True)
    assert len(xs) == len(cuts) == 4
    assert [tuple(x.shape) for x in xs] == [(7, 4), (7, 4), (7, 4), (4, 4)]
    assert torch.equal(torch.cat(xs).T.flatten(), tokens[:100])
    assert torch.equal(torch.cat(ys).T.flatten(), tokens[1:101])


def test_at_most_a_remainder_smaller_than_the_streams_is_left_out():
    for length in range(16, 60):
        cuts = bayesrnn.Cuts(torch.arange(length), num_streams=5, unroll=3)
        assert 0 <= length - 1 - sum(y.numel() for _, y in cuts) < 5


def test_real_valued_series_with_its_own_targets():
    series, targets = torch.randn(20, 3), torch.randn(20, 2)
    cuts = bayesrnn.Cuts(series, num_streams=2, unroll=4, targets=targets, batch_first=True)
    x, y = cuts[1]
    assert torch.equal(x[0], series[4:8])
    assert torch.equal(y[1], targets[14:18])


def test_a_pass_pays_the_kl_once():
    """The sum over a pass of loss + kl_weight * KL is (total nats + KL) / N."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
    posterior = bayesrnn.Posterior(model, bayesrnn.ScaleMixture(0.5, 1.0, 0.1))
    tokens = torch.randint(11, (151,))
    cuts = bayesrnn.Cuts(tokens, num_streams=5, unroll=8)
    assert len(cuts) * cuts.kl_weight("sum over time") == pytest.approx(cuts.loss_scale)
    kl, total = posterior.kl().item(), 0.0
    for x, y in cuts:
        nats = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
        total += nats.item() / 5 + cuts.kl_weight("sum over time") * kl
    everything = nn.functional.cross_entropy(model(tokens[:-1]), tokens[1:], reduction="sum")
    assert total == pytest.approx((everything.item() + kl) / 5, rel=1e-6)


def test_the_kl_weight_follows_how_the_loss_is_reduced():
    """Whatever the loss divides the nats of a pass by, the KL of the pass is divided by too."""
    cuts = bayesrnn.Cuts(torch.arange(121), num_streams=5, unroll=8)  # three chunks of 8 steps
    whole = len(cuts) * 8 * 5
    for reduction, divided_by in [("mean", 8 * 5), ("sum over time", 5), ("sum", 1)]:
        assert cuts.kl_weight(reduction) * len(cuts) == pytest.approx(1 / divided_by)
    assert cuts.kl_weight("mean") == pytest.approx(1 / whole)
    with pytest.raises(ValueError, match=r"kl_weight\('none'\): say how the loss is reduced"):
        cuts.kl_weight("none")


@pytest.mark.parametrize("kind", ["cuts", "minibatches"])
def test_a_kl_weight_that_does_not_say_what_the_loss_is_is_refused(kind):
    data = {
        "cuts": bayesrnn.Cuts(torch.arange(121), num_streams=5, unroll=8),
        "minibatches": bayesrnn.Minibatches(torch.ones(9, 3), torch.ones(9), batch_size=3),
    }[kind]
    posterior = bayesrnn.Posterior(nn.Linear(3, 2), bayesrnn.Normal(1.0))
    with pytest.raises(ValueError, match=r"write kl_weight\('mean'\)"):
        posterior.backward(
            lambda: posterior.model(torch.ones(1, 3)).sum(), kl_weight=data.kl_weight
        )


def test_state_is_carried_detached_and_reset_each_pass():
    lstm = nn.LSTM(1, 3)
    cuts = bayesrnn.Cuts(torch.randn(41, 1), num_streams=2, unroll=5)
    whole, _ = lstm(torch.cat([x for x, _ in cuts]))
    for _ in range(2):
        assert len(cuts) == 4
        outputs = []
        for index, (x, _) in enumerate(cuts):
            assert (cuts.state is None) == (index == 0)
            output, cuts.state = lstm(x, cuts.state)
            assert not any(s.requires_grad for s in cuts.state)
            outputs.append(output)
        torch.testing.assert_close(torch.cat(outputs), whole)


def test_states_of_any_shape_are_detached():
    from bayesrnn.data.cuts import detach

    leaf = torch.ones(1, requires_grad=True)
    state = detach({"a": [leaf * 2, (leaf * 3, None)], "b": 7})
    assert not state["a"][0].requires_grad
    assert not state["a"][1][0].requires_grad
    assert state["b"] == 7


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_streams": 0, "unroll": 5}, "num_streams=0 must be a whole number"),
        ({"num_streams": 2, "unroll": 0}, "unroll=0"),
        ({"num_streams": 2.5, "unroll": 5}, "num_streams=2.5"),
        ({"num_streams": 50, "unroll": 5}, "use at most 9"),
        ({"num_streams": 2, "unroll": 5, "targets": torch.zeros(3)}, "10 inputs but 3 targets"),
    ],
)
def test_bad_cuts(kwargs, message):
    with pytest.raises(ValueError, match=message):
        bayesrnn.Cuts(torch.arange(10), **kwargs)


def test_past_the_end():
    with pytest.raises(IndexError):
        bayesrnn.Cuts(torch.arange(10), num_streams=1, unroll=5)[2]


def test_arrays_are_refused_with_the_cure():
    with pytest.raises(
        ValueError, match=r"sequence is a list; pass a tensor, such as torch.as_tensor"
    ):
        bayesrnn.Cuts([1, 2, 3], num_streams=1, unroll=1)  # type: ignore[arg-type]


def test_its_representation_is_one_line():
    cuts = bayesrnn.Cuts(torch.arange(5402), num_streams=4, unroll=10)
    assert repr(cuts) == "Cuts(4 streams of 1,350 steps, in 135 chunks of 10)"


@pytest.mark.parametrize("shape", [(16, 200, 3), ()])
def test_a_sequence_has_one_axis_of_time_and_at_most_one_of_features(shape):
    with pytest.raises(ValueError, match=r"a sequence is \(T,\) or \(T, features\)"):
        bayesrnn.Cuts(torch.zeros(shape), num_streams=16, unroll=48)


def test_streams_shorter_than_a_chunk_are_noticed():
    with pytest.warns(UserWarning, match="16 streams of 1 steps are shorter than unroll=48; use a"):
        cuts = bayesrnn.Cuts(torch.zeros(20, 200), num_streams=16, unroll=48)
    assert len(cuts) == 1
