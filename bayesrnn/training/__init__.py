"""The training loop, the run folders it writes, and its checkpoints."""


class Diverged(RuntimeError):
    """Training has diverged: the loss is not finite, or far above that of a uniform guess."""
