"""Table 5: properties of Bayesian methods. Each tick names a test that shows it; the row runs these tests."""

import subprocess
import sys
from pathlib import Path

from reproduction import Experiment, Finding, Found, Scale, Settings, Table

ROOT = Path(__file__).resolve().parent.parent
PROPERTIES = ("a posterior over a stochastic process", "flexible posterior", "adaptive computation")
HMC = "test_baselines_hmc.py::test_hmc_samples_the_exact_gaussian_posterior"
HYPERNET = "test_baselines_hypernet.py::test_the_density_of_a_hypernet_follows_from_its_jacobian"
BBVI = "test_baselines_depth.py::test_bbvi_finds_the_exact_gaussian_posterior_over_paths"
PRIOR = "test_paper_errors.py::test_1_with_a_zero_drift_net_the_posterior_is_the_prior"
SEEING = "test_integrate_guide.py::test_a_guided_bound_reaches_the_evidence_where_a_drift_of_the_weights_alone_does_not"
ADAPTIVE = "test_integrate_adaptive.py::test_a_tighter_tolerance_costs_more_and_errs_less"
# The tests of each tick; an empty tuple is a cross in the paper, None a tick of the paper that is not shown here.
METHODS: dict[str, tuple[tuple[str, ...] | None, ...]] = {
    "Bayes by Backprop": ((), (), ()),
    "MCMC for BNNs": ((), (HMC,), ()),
    "Bayesian hypernets": ((), (HYPERNET,), ()),
    "BBVI for SDEs": ((BBVI,), (), ()),
    "Bayesian neural ODEs": ((), (), None),
    "SDE-BNN": ((PRIOR,), (SEEING,), (ADAPTIVE,)),
}


class Properties(Experiment):
    title = "Table 5: properties of Bayesian methods"
    claim = "Only the SDE-BNN has a flexible posterior over a stochastic process and adapts its computation."

    def rows(self, scale: Scale) -> dict[str, Settings]:
        return {name: {"tests": [list(each or ()) for each in tests]} for name, tests in METHODS.items()}

    def run(self, settings: Settings) -> Found:
        return {"passed": [_pass(tests) if tests else None for tests in settings["tests"]]}

    def finding(self, found: dict[str, Found]) -> Finding:
        shown = {name: [passed is True for passed in each["passed"]] for name, each in found.items()}
        alone = all(shown["SDE-BNN"]) and not any(all(each) for name, each in shown.items() if name != "SDE-BNN")
        if any(passed is False for each in found.values() for passed in each["passed"]):
            return Finding(None, "Some tests fail.")
        return Finding(
            alone,
            "The tests of all ticks pass. Flexible means here that the drift also sees hidden states: a drift of the "
            "weights alone, as in the paper, does not reach the evidence of a net with hidden units. Bayesian neural "
            "ODEs are solved on grids of any number of steps here, not by adaptive ones: this tick is not shown.",
        )

    def table(self, found: dict[str, Found]) -> Table:
        rows = []
        for name, each in found.items():
            cells = []
            for tests, passed in zip(METHODS[name], each["passed"], strict=True):
                cells.append("not shown" if tests is None else "no" if not tests else _tick(tests, passed))
            rows.append([name, *cells])
        return Table(("method", *PROPERTIES), rows)


def _tick(tests: tuple[str, ...], passed: bool) -> str:
    return f"{'yes' if passed else 'FAILS'}: {', '.join(tests)}"


def _pass(tests: list[str]) -> bool:
    """Whether these tests pass."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{test}" for test in tests)],
        cwd=ROOT, capture_output=True,
    )  # fmt: skip
    return done.returncode == 0


EXPERIMENT = Properties()
