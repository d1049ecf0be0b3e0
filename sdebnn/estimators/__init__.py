"""Estimators for scikit-learn: drop them in where its own ones stand."""

from sdebnn.estimators.classifier import SDEBNNClassifier as SDEBNNClassifier
from sdebnn.estimators.regressor import Interval as Interval
from sdebnn.estimators.regressor import SDEBNNRegressor as SDEBNNRegressor
