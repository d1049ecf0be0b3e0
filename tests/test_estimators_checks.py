"""All checks that scikit-learn has for estimators; none is expected to fail."""

import os
import subprocess
import sys

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import sdebnn

QUICK = {"members": 1, "max_iter": 60, "draws": 20}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # the checks pass invalid data on purpose
]


@parametrize_with_checks([sdebnn.SDEBNNRegressor(**QUICK), sdebnn.SDEBNNClassifier(**QUICK)])
def test_the_checks_of_scikit_learn_pass(estimator, check):
    check(estimator)


def test_array_api_inputs_are_accepted():
    """SciPy reads the setting when it is imported, so the check runs in a process of its own."""
    code = (
        "import jax, sdebnn; from sklearn.utils.estimator_checks import check_array_api_input as check\n"
        "jax.config.update('jax_disable_most_optimizations', True)\n"
        "model = sdebnn.SDEBNNClassifier(members=1, max_iter=20, draws=20)\n"
        "check('SDEBNNClassifier', model, 'numpy', expect_only_array_outputs=False)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "SCIPY_ARRAY_API": "1"})
