"""The experiments: each is one folder, and one line here. An experiment is imported on first use."""

from bayesrnn.training.experiment import experiments as experiments
from bayesrnn.training.experiment import register

register("language", "bayesrnn.tasks.language.experiment")
register("mnist", "bayesrnn.tasks.digits.experiment")
register("captions", "bayesrnn.tasks.captions.experiment")
