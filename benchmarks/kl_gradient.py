"""The gradient norm of the KL at initialisation, over the paper's grid of priors.

    python benchmarks/kl_gradient.py

The KL of a scale mixture, estimated from one sample of each weight, has a large gradient norm: near zero the
narrow component's score is steep, and with millions of weights the estimate is mostly noise. With gradient
clipping at 5, it determines how much of the data's gradient is left. The table also has the gradient norm
of the expected KL.
"""

import argparse
import itertools
import math

import torch

from bayesrnn.report.table import markdown_table
from bayesrnn.variational import bbb
from bayesrnn.variational.priors import ScaleMixture


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--weights", type=int, default=19_770_000, help="d; the medium model has this many"
    )
    parser.add_argument("--minibatches", type=int, default=20 * 1328, help="1 / kl_weight")
    parser.add_argument("--sigma", type=float, default=0.02, help="where sigma starts")
    parser.add_argument("--bound", type=float, default=0.05, help="mu is uniform in +- this")
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    mu = torch.empty(options.weights).uniform_(-options.bound, options.bound, generator=generator)
    eps = torch.randn(options.weights, generator=generator)
    sigma, zero = torch.full_like(eps, options.sigma), torch.zeros_like(eps)
    kl_weight = 1 / options.minibatches

    rows = []
    for pi, log_sigma1, log_sigma2 in itertools.product(
        (0.25, 0.5, 0.75), (0, -1, -2), (-6, -7, -8)
    ):
        prior = ScaleMixture(pi, math.exp(log_sigma1), math.exp(log_sigma2))
        sampled, _ = bbb.gradients(zero, prior.score(mu + sigma * eps), eps, sigma, kl_weight)
        expected, _ = bbb.expected_gradients(
            zero, prior.expected_score(mu, sigma), eps, sigma, kl_weight
        )
        lengths = [f"{g_mu.norm().item():.1f}" for g_mu in (sampled, expected)]
        rows.append([f"{pi:g}", str(log_sigma1), str(log_sigma2), *lengths])
    print(markdown_table(["pi", "log sigma1", "log sigma2", "sampled", "expected"], rows))


if __name__ == "__main__":
    main()
