"""The commands `bayesrnn captions features`, `evaluate` and `describe`."""
