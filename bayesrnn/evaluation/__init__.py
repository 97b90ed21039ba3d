"""What several experiments measure alike: calibration, and loss against the share of weights dropped."""
