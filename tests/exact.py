"""Exact answers, by brute force or quadrature, with NumPy and SciPy alone: nothing here imports sdebnn."""

import numpy as np
from scipy import integrate, spatial, special, stats


def ou_moments(rate: float, mean: float, sigma: float, w0: float, t: float) -> tuple[float, float]:
    """Mean and standard deviation of an OU process, from the ODEs of its moments."""

    def rhs(_, state):
        m, v = state
        return [rate * (mean - m), -2 * rate * v + sigma**2]

    m, v = integrate.solve_ivp(rhs, (0, t), [w0, 0.0], rtol=1e-10, atol=1e-12).y[:, -1]
    return m, np.sqrt(v)


def euler_chain(a: np.ndarray, b: np.ndarray, sigma: float, w0: float) -> tuple[np.ndarray, np.ndarray]:
    """Joint mean and covariance of w_1..w_n under w_{k+1} = w_k + (a_k w_k + b_k) dt + σ √dt ε."""
    n = len(a)
    dt = 1 / n
    # L w = c + σ √dt ε with L unit lower bidiagonal
    lower = np.eye(n) - np.diag(1 + a[1:] * dt, -1)
    c = b * dt
    c[0] += (1 + a[0] * dt) * w0
    inverse = np.linalg.inv(lower)
    return inverse @ c, sigma**2 * dt * inverse @ inverse.T


def gaussian_kl(mean_q, cov_q, mean_p, cov_p) -> float:
    """KL between two multivariate normals, by dense linear algebra."""
    precision = np.linalg.inv(cov_p)
    shift = mean_p - mean_q
    _, log_q = np.linalg.slogdet(cov_q)
    _, log_p = np.linalg.slogdet(cov_p)
    return 0.5 * (np.trace(precision @ cov_q) + shift @ precision @ shift - len(mean_q) + log_p - log_q)


def log_evidence_of_end(mean: np.ndarray, cov: np.ndarray, noise: float, y: float) -> float:
    """log p(y) for y = w_n + noise, from the joint law of a chain."""
    return float(stats.norm.logpdf(y, mean[-1], np.sqrt(cov[-1, -1] + noise**2)))


def log_evidence_of_integral(mean: np.ndarray, cov: np.ndarray, w0: float, noise: float, y: np.ndarray) -> float:
    """log p(y_1..y_m) for y_i = (w_0 + w_1 + ... + w_{n-1}) / n + noise_i, from the joint law of a chain."""
    n = len(mean)
    weights = np.full(n, 1 / n)
    weights[-1] = 0.0  # Euler's integral takes left ends: w_0 counts, w_n does not
    center = w0 / n + weights @ mean
    variance = weights @ cov @ weights
    m = len(y)
    return float(stats.multivariate_normal.logpdf(y, np.full(m, center), variance + noise**2 * np.eye(m)))


def normal_kl(mean_q: float, std_q: float, mean_p: float, std_p: float) -> float:
    """KL between two normals by quadrature."""
    q, p = stats.norm(mean_q, std_q), stats.norm(mean_p, std_p)
    low, high = mean_q - 12 * std_q, mean_q + 12 * std_q
    return integrate.quad(lambda w: q.pdf(w) * (q.logpdf(w) - p.logpdf(w)), low, high, epsabs=1e-12)[0]


def mixture_kl(mean: float, std: float, share: float, wide: float, narrow: float) -> float:
    """KL by quadrature from a normal to a mixture of two normals around zero."""
    q, p_wide, p_narrow = stats.norm(mean, std), stats.norm(0, wide), stats.norm(0, narrow)

    def log_p(w):
        return np.logaddexp(np.log(share) + p_wide.logpdf(w), np.log1p(-share) + p_narrow.logpdf(w))

    low, high = mean - 12 * std, mean + 12 * std
    kinks = [w for w in (-5 * narrow, 0.0, 5 * narrow) if low < w < high] or None
    return integrate.quad(lambda w: q.pdf(w) * (q.logpdf(w) - log_p(w)), low, high, points=kinks, limit=500)[0]


def gaussian_posterior(mean, cov, design, noise: float, y) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean and covariance of w given y = design w + noise, and log p(y), where w is normal beforehand."""
    law = design @ cov @ design.T + noise**2 * np.eye(len(y))
    gain = np.linalg.solve(law, design @ cov).T
    evidence = stats.multivariate_normal.logpdf(y, design @ mean, law)
    return mean + gain @ (y - design @ mean), cov - gain @ design @ cov, float(evidence)


def random_start(a: np.ndarray, b: np.ndarray, sigma: float, std0: float) -> tuple[np.ndarray, np.ndarray]:
    """Joint mean and covariance of w_0..w_n of an Euler chain that starts from N(0, std0²)."""
    mean, cov = euler_chain(a, b.copy(), sigma, 0.0)
    # the chain is linear in where it starts
    slope = np.concatenate([[1.0], euler_chain(a, b.copy(), sigma, 1.0)[0] - mean])
    noise = np.zeros((len(slope), len(slope)))
    noise[1:, 1:] = cov
    return np.concatenate([[0.0], mean]), noise + std0**2 * np.outer(slope, slope)


def kernel(name: str, a: np.ndarray, b: np.ndarray, length: float, amplitude: float) -> np.ndarray:
    """The covariance of a Gaussian process between two sets of points."""
    r = spatial.distance.cdist(a, b) / length
    shape = {
        "rbf": np.exp(-(r**2) / 2),
        "matern32": (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
        "matern52": (1 + np.sqrt(5) * r + 5 / 3 * r**2) * np.exp(-np.sqrt(5) * r),
    }[name]
    return amplitude**2 * shape


def _split(chains: np.ndarray) -> np.ndarray:
    """Each chain as two: "chain draw"."""
    half = chains.shape[1] // 2
    return np.concatenate([chains[:, :half], chains[:, -half:]])


def _rank_normal(chains: np.ndarray) -> np.ndarray:
    ranks = stats.rankdata(chains, method="average").reshape(chains.shape)
    return special.ndtri((ranks - 3 / 8) / (chains.size + 1 / 4))


def rhat(chains: np.ndarray) -> float:
    """R-hat of one quantity, rank-normalised, split, and the larger of bulk and tail (Vehtari et al. 2021)."""

    def plain(chains):
        n = chains.shape[1]
        between, within = n * chains.mean(1).var(ddof=1), chains.var(1, ddof=1).mean()
        return np.sqrt((between / within + n - 1) / n)

    split = _split(chains)
    folded = np.abs(split - np.median(split))
    return max(plain(_rank_normal(split)), plain(_rank_normal(folded)))


def effective_size(chains: np.ndarray) -> float:
    """How many independent draws the mean of "chain draw" is worth, by Geyer's initial positive sequence."""
    m, n = chains.shape
    centred = chains - chains.mean(1, keepdims=True)
    lags = [np.mean(np.sum(centred[:, : n - k] * centred[:, k:], axis=1)) / n for k in range(n)]
    variance = lags[0] * n / (n - 1)
    total = variance * (n - 1) / n + chains.mean(1).var(ddof=1)
    rho = 1 - (variance - np.array(lags) * n / (n - 1)) / total
    time = 0.0
    for pair in rho[: n // 2 * 2].reshape(-1, 2).sum(1):
        if pair < 0:
            break
        time += 2 * pair
    return m * n / max(time - 1, 1 / np.log10(m * n))


def within(values, expected, errors: float = 4.0) -> bool:
    """Whether the mean over the first axis is so few standard errors from what it should be."""
    values = np.asarray(values, float)
    error = values.std(0, ddof=1) / np.sqrt(len(values))
    return bool(np.all(np.abs(values.mean(0) - expected) < errors * error + 1e-6))
