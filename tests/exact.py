"""Exact answers, by brute force or quadrature, with NumPy and SciPy alone: nothing here imports sdebnn."""

import numpy as np
from scipy import integrate, stats


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
