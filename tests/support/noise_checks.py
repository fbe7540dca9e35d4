"""Statistical checks of noise, each with its false-alarm rate."""

import numpy as np
from scipy.stats import kstest, norm


def check_scale(sample):
    """Kolmogorov-Smirnov against the standard normal on 76,800 draws; false-alarm rate 1e-4."""
    assert sample.size >= 20_000
    assert kstest(sample.ravel(), norm.cdf).pvalue > 1e-4


def check_moments(sample):
    """Mean, variance, skewness and kurtosis within five standard errors; false-alarm rate below 3e-6."""
    n, flat = sample.size, sample.ravel()
    assert abs(flat.mean()) < 5 / np.sqrt(n)
    assert abs((flat**2).mean() - 1) < 5 * np.sqrt(2 / n)
    assert abs((flat**3).mean()) < 5 * np.sqrt(15 / n)
    assert abs((flat**4).mean() - 3) < 5 * np.sqrt(96 / n)


def check_independent(rows):
    """No two rows are correlated: Bonferroni over all pairs, false-alarm rate 1e-4 (normal approximation)."""
    number, length = rows.shape
    correlations = np.abs(np.corrcoef(rows)[np.triu_indices(number, 1)])
    assert correlations.max() < norm.isf(1e-4 / (2 * correlations.size)) / np.sqrt(length)
