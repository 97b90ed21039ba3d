"""Predictive distributions and their uncertainty, at the mean weights or averaged over weight samples."""

from bayesrnn.prediction.classes import Categorical as Categorical
from bayesrnn.prediction.classes import predict as predict
from bayesrnn.prediction.conformal import ConformalClasses as ConformalClasses
from bayesrnn.prediction.conformal import ConformalIntervals as ConformalIntervals
from bayesrnn.prediction.conformal import calibrate as calibrate
from bayesrnn.prediction.forecasting import Forecast as Forecast
from bayesrnn.prediction.forecasting import forecast as forecast
from bayesrnn.prediction.values import Values as Values
from bayesrnn.prediction.values import predict_values as predict_values
