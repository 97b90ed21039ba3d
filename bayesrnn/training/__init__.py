"""The loop, the run folder it writes, and its checkpoints."""
