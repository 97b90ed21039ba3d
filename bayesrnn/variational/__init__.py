"""The method: flat vectors in, flat vectors out.

Read in the paper's order: `gaussian` (section 2), `priors` (section 5.1), `bbb` (section 3),
`sharpening` (section 4). Nothing here knows what a module, a layer or a data set is.
"""
