"""How long the gradient of the sampled KL is, before any data, over the paper's grid of priors.

    python benchmarks/kl_gradient.py

The KL of a scale mixture is estimated from one sample of each weight. Near zero its narrow component
has a steep score, so with millions of weights the estimate's gradient is long, and mostly noise. Set
against a clipping length of 5 it decides how much of the data's gradient is left.
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
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    uniform = torch.empty(options.weights).uniform_(-1, 1, generator=generator)
    eps = torch.randn(options.weights, generator=generator)
    sigma = torch.full_like(eps, options.sigma)

    rows = []
    for pi, log_sigma1, log_sigma2 in itertools.product(
        (0.25, 0.5, 0.75), (0, -1, -2), (-6, -7, -8)
    ):
        prior = ScaleMixture(pi, math.exp(log_sigma1), math.exp(log_sigma2))
        lengths = []
        for bound in (0.05, 0.1):
            score = prior.score(bound * uniform + sigma * eps)
            zero = torch.zeros_like(eps)
            g_mu, _ = bbb.gradients(zero, score, eps, sigma, 1 / options.minibatches)
            lengths.append(g_mu.norm().item())
        rows.append(
            [f"{pi:g}", str(log_sigma1), str(log_sigma2), *(f"{length:.1f}" for length in lengths)]
        )
    headings = ["pi", "log sigma1", "log sigma2", "length, mu in +-0.05", "length, mu in +-0.1"]
    print(markdown_table(headings, rows))


if __name__ == "__main__":
    main()
