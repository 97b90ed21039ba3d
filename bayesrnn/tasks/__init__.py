"""The experiments: a folder each, and a line each here. Each is imported when it is needed."""

from bayesrnn.training.experiment import experiments as experiments
from bayesrnn.training.experiment import register

register("language", "bayesrnn.tasks.language.experiment")
register("mnist", "bayesrnn.tasks.digits.experiment")
