"""The loop, the run folder it writes, and its checkpoints."""


class Diverged(RuntimeError):
    """The loss is no longer a number, or worse than knowing nothing."""
