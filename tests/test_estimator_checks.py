"""scikit-learn's own checks of an estimator, all of them, none expected to fail."""

import os
import subprocess
import sys

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import sdebnn

QUICK = {"members": 1, "max_iter": 100, "draws": 10}

pytestmark = pytest.mark.filterwarnings("ignore")  # they warn of what they try


@parametrize_with_checks([sdebnn.SDEBNNRegressor(**QUICK), sdebnn.SDEBNNClassifier(**QUICK)])
def test_scikit_learn_has_no_complaint(estimator, check):
    check(estimator)


def test_the_check_that_needs_an_environment_of_its_own():
    """Array API dispatch is for SciPy to allow, before it is imported."""
    code = (
        "import jax, sdebnn; from sklearn.utils.estimator_checks import check_array_api_input as check\n"
        "jax.config.update('jax_disable_most_optimizations', True)\n"
        "for of in (sdebnn.SDEBNNRegressor, sdebnn.SDEBNNClassifier):\n"
        "    check(of.__name__, of(members=1, max_iter=20), 'numpy', expect_only_array_outputs=False)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "SCIPY_ARRAY_API": "1"})
