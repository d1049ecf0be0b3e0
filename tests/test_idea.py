"""The page "The idea in pictures": the arithmetic of its figure, run in Node, against closed forms and NumPy."""

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "idea"
PAGE = FOLDER.parent / "idea.md"
STANDARD_ERRORS = 4.5  # a test compares up to a few hundred numbers

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="Node is not installed, and figure.js is not run")


def run(script):
    """What a script returns, as JSON; in it, ``m`` is the model of figure.js."""
    assert NODE is not None
    code = f"const m = require({json.dumps(str(FOLDER / 'figure.js'))}); const found = (() => {{{script}}})();"
    command = [NODE, "-e", f"{code} console.log(JSON.stringify(found))"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.fixture(scope="module")
def reference():
    """draw.py, which has the joint normal law of all weights as a dense matrix."""
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("draw", FOLDER / "draw.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_node
def test_the_random_numbers_of_the_figure_are_standard_normal_and_independent():
    found = np.array(run("const n = m.normals(3, 1, 4); return Array.from({length: 200000}, n)"))
    error = STANDARD_ERRORS / np.sqrt(len(found))
    assert abs(found.mean()) < error
    assert abs((found**2).mean() - 1) < np.sqrt(2) * error  # the variance of z² is 2
    assert abs((found**4).mean() - 3) < np.sqrt(96) * error  # that of z⁴ is 105 - 9
    assert abs((found[1:] * found[:-1]).mean()) < error
    other = np.array(
        run("return Array.from({length: 3}, (_, i) => m.normals(3, 1, 5 + i)()).concat([m.normals(3, 1, 5)()])")
    )
    assert other[0] == other[3]
    assert len(set(other)) == 3
    # The first numbers of neighbouring streams, which are the draws of one seed and the seeds of one draw.
    for stream in ("m.normals(1, i, 0)()", "m.normals(i, 0, 0)()"):
        first = np.array(run(f"return Array.from({{length: 20000}}, (_, i) => {stream})"))
        error = STANDARD_ERRORS / np.sqrt(len(first))
        assert abs(first.mean()) < error
        assert abs((first**2).mean() - 1) < np.sqrt(2) * error
        assert abs((first[1:] * first[:-1]).mean()) < error


@needs_node
def test_prior_paths_have_the_moments_of_the_ornstein_uhlenbeck_process():
    at = np.array([0, 1, 8, 32, 64])
    script = f"""const paths = Array.from({{length: 400}}, (_, i) => m.priorPaths(1.7, 1, i)).flat();
        return [m.RATE, m.FINE, paths.map((path) => {at.tolist()}.map((k) => path[k]))]"""
    rate, fine, paths = run(script)
    w, t = np.array(paths), at / fine
    # cov(w_t, w_u) = σ² / (2 rate) (exp(-rate |t - u|) - exp(-rate (t + u))), from w_0 = 0
    exact = 1.7**2 / (2 * rate) * (np.exp(-rate * abs(t[:, None] - t)) - np.exp(-rate * (t[:, None] + t)))
    std = np.sqrt(np.diag(exact))
    error = STANDARD_ERRORS / np.sqrt(len(w))
    assert (w[:, 0] == 0).all()
    assert (abs(w.mean(0)) <= error * std).all()
    # The variance of a product of two normal numbers is var·var + cov².
    assert (abs(w.T @ w / len(w) - exact) <= error * np.sqrt(np.outer(std, std) ** 2 + exact**2)).all()


@needs_node
def test_the_first_points_and_the_units_are_those_of_the_picture_without_javascript(reference):
    points, centres, fine, noise = run("return [m.START, m.CENTRES, m.FINE, m.NOISE]")
    assert np.array_equal(points, reference.DOTS)
    assert np.array_equal(centres, reference.CENTRES)
    assert (fine, noise) == (reference.FINE, reference.NOISE)


@needs_node
@pytest.mark.parametrize("layers", [1, 4, 32])
def test_means_and_standard_deviations_are_those_of_the_joint_normal_law(reference, layers):
    grid, units, depths = [-4.0, -2.0, -0.3, 1.3, 3.9], [2, 6, 14], [0, 7, 64]
    functions, weights = run(f"""const law = m.law(1.3, {layers}, m.START);
        return [{grid}.map(law.function), {units}.map((j) => {depths}.map((k) => law.weight(j, k)))]""")
    mean, covariance, _ = reference.exact_law(1.3, layers, reference.DOTS)
    of_f = reference.outputs_of_weights(np.array(grid), layers)
    assert np.allclose([f["mean"] for f in functions], of_f @ mean, atol=1e-9)
    assert np.allclose([f["std"] for f in functions], np.sqrt(np.diag(of_f @ covariance @ of_f.T)), atol=1e-9)
    index = np.array([[unit * (reference.FINE + 1) + depth for depth in depths] for unit in units])
    assert np.allclose([[w["mean"] for w in row] for row in weights], mean[index], atol=1e-9)
    variances = np.diag(covariance).clip(0)[index]
    assert np.allclose([[w["std"] for w in row] for row in weights], np.sqrt(variances), atol=1e-7)


@needs_node
def test_the_price_is_the_kl_between_the_laws_of_all_weights(reference):
    """KL(N(m, C) ‖ N(0, P)) of the weights of all layers, though the figure computes it from the outputs alone."""
    layers = 8
    mean, covariance, prior = reference.exact_law(2.0, layers, reference.DOTS)
    used = np.flatnonzero(reference.outputs_of_weights(np.zeros(1), layers)[0] > -1).reshape(-1, reference.FINE + 1)
    used = used[:, (2 * np.arange(layers) + 1) * reference.FINE // (2 * layers)].ravel()
    m, C, P = mean[used], covariance[np.ix_(used, used)], prior[np.ix_(used, used)]
    inverse = np.linalg.inv(P)
    logs = np.linalg.slogdet(P)[1] - np.linalg.slogdet(C)[1]
    exact = 0.5 * (np.trace(inverse @ C) + m @ inverse @ m - len(m) + logs)
    assert run(f"return m.law(2, {layers}, m.START).kl()") == pytest.approx(exact, abs=1e-6)


@needs_node
def test_draws_of_the_posterior_have_its_mean_and_covariance(reference):
    """Each draw is a bent draw of the prior; 3,000 of them are compared with the law, weights and function."""
    count, layers, grid = 3000, 4, [-3.5, -2.2, 0.0, 1.7]
    samples = np.array(
        run(f"""const law = m.law(2, {layers}, m.START), phis = {grid}.map(m.features);
        return Array.from({{length: {count}}}, (_, i) => {{
            const paths = law.draw(7, i);
            return [paths[6][20], paths[6][64], ...phis.map((phi) => m.output(paths, phi, {layers}))];
        }})""")
    )
    mean, covariance, _ = reference.exact_law(2.0, layers, reference.DOTS)
    rows = np.eye(len(mean))[[6 * 65 + 20, 6 * 65 + 64]]
    matrix = np.concatenate([rows, reference.outputs_of_weights(np.array(grid), layers)])
    exact, off = matrix @ covariance @ matrix.T, samples - matrix @ mean
    var = np.diag(exact)
    error = STANDARD_ERRORS / np.sqrt(count)
    assert (abs(off.mean(0)) < error * np.sqrt(var)).all()
    assert (abs(off.T @ off / count - exact) < error * np.sqrt(np.outer(var, var) + exact**2)).all()


@needs_node
def test_without_points_the_posterior_is_the_prior_and_costs_nothing():
    kl, bent, prior = run("const law = m.law(2, 8, []); return [law.kl(), law.draw(1, 3), m.priorPaths(2, 1, 3)]")
    assert kl == 0
    assert bent == prior


@needs_node
def test_a_seed_names_one_picture_whatever_the_number_of_layers_and_sigma_scales_it():
    one, again, other, larger = run("return [m.priorPaths(1, 5, 2), m.priorPaths(1, 5, 2), m.priorPaths(1, 6, 2), "
                                    "m.priorPaths(3, 5, 2)]")  # fmt: skip
    assert one == again
    assert one != other
    assert np.allclose(3 * np.array(one), larger)


@needs_node
def test_a_dot_narrows_the_gap_and_leaves_the_far_edge_wide():
    before, after = run("""const spread = (points) => m.spreads(m.law(3, 32, points), points, 4);
        return [spread(m.START), spread([...m.START, [0, 0]])]""")
    assert before["points"] < 0.1 < before["gap"] < before["beyond"]
    assert after["gap"] < before["gap"] / 2
    assert after["beyond"] == pytest.approx(before["beyond"], abs=0.01)


@needs_node
def test_the_numbers_of_the_page_about_the_figure_are_those_that_it_shows():
    text = PAGE.read_text()
    prices = run("return [3, 0.5].map((sigma) => m.law(sigma, 32, m.START).kl().toFixed(1))")
    assert re.search(rf"rises from {prices[0]}\s+to {prices[1]} nats", text)


def test_the_exact_price_of_the_page_is_that_of_the_picture(reference):
    kl, evidence = reference.exact_answers()
    assert f"would pay {kl:.1f}" in " ".join(PAGE.read_text().split())
    assert evidence < 0 < kl


def test_the_figure_loads_nothing_and_is_short():
    code = (FOLDER / "figure.js").read_text()
    assert not re.search(r"https?:|fetch\(|XMLHttpRequest|import\b", code)
    assert len(code.splitlines()) < 400


def test_every_file_that_the_page_loads_exists_and_is_small():
    names = re.findall(r'(?:src|href)="([^"#]+)"|\]\((idea/[^)]+)\)', PAGE.read_text())
    files = [PAGE.parent / (one or other) for one, other in names]
    assert len(files) == 9
    assert all(file.stat().st_size < 150_000 for file in files)


def test_the_block_of_the_page_draws_an_ornstein_uhlenbeck_path():
    """Its steps are those of Euler's method, whose last mean and variance are known."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.S | re.M)
    ends = []
    for seed in range(400):
        scope = {}
        exec(block.replace("default_rng(0)", f"default_rng({seed})"), scope)
        ends.append(scope["w"][-1])
    keep = 1 - 2.0 / 256
    mean, variance = 2 * keep**256, 1.5**2 / 256 * (1 - keep**512) / (1 - keep**2)
    assert abs(np.mean(ends) - mean) < STANDARD_ERRORS * np.sqrt(variance / 400)
    assert abs(np.var(ends) / variance - 1) < STANDARD_ERRORS * np.sqrt(2 / 400)
