"""Estimators that can be used wherever scikit-learn's own can."""

from sdebnn.estimators.classifier import SDEBNNClassifier as SDEBNNClassifier
from sdebnn.estimators.regressor import Interval as Interval
from sdebnn.estimators.regressor import SDEBNNRegressor as SDEBNNRegressor
