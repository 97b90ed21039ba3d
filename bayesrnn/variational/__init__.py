"""The method: flat vectors in, flat vectors out.

Read in the paper's order: `gaussian` (section 2), `bbb` (section 3), `sharpening` (section 4), `priors` with
`normal`, `scale_mixture` and `row_mixture` (section 5.1), `pruning` (section 5.1). `bump_fit` is the one
approximation, and `elementary` what the formulas need of arithmetic. Nothing here knows what a module, a
layer or a data set is, nor how the formulas are run fast: that is `bayesrnn.kernels`.
"""
