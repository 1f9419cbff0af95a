"""Moments of ordered categories by quadrature against their closed form, over twelve decades of cavities."""

import mpmath
import numpy as np
import pytest

import pymc_ep as pmep

CATEGORIES = {"lowest": (-np.inf, -1.0), "middle": (-1.0, 0.5), "highest": (0.5, np.inf)}


def exact(mean, variance, lower, upper):
    """Log of Phi((upper - m) / s) - Phi((lower - m) / s), s^2 = 1 + v, and moments from its derivatives in m."""
    with mpmath.workdps(60):
        m, v = mpmath.mpf(mean), mpmath.mpf(variance)
        s = mpmath.sqrt(1 + v)

        def upper_tail(x):
            return mpmath.erfc(x / mpmath.sqrt(2)) / 2

        # Both ends mirrored to one side, so that the difference keeps its digits.
        a, b = (mpmath.mpf(end) for end in (lower, upper))
        sign = -1 if (a + b) / 2 < m else 1
        a, b, m = (a, b, m) if sign > 0 else (-b, -a, -m)
        z, density = (
            upper_tail((a - m) / s) - upper_tail((b - m) / s),
            [mpmath.mpf(0) if mpmath.isinf(end) else mpmath.npdf((end - m) / s) for end in (a, b)],
        )
        ratios = [d / z for d in density]
        first = (ratios[0] - ratios[1]) / s
        ends = [mpmath.mpf(0) if mpmath.isinf(end) else (end - m) / s for end in (a, b)]
        second = (ends[0] * ratios[0] - ends[1] * ratios[1]) / s**2 - first**2
        return float(mpmath.log(z)), float(sign * (m + v * first)), float(v + v**2 * second)


@pytest.mark.parametrize("mode", [None, "JAX"])
@pytest.mark.parametrize("category", CATEGORIES)
def test_ordered_probit_far_from_its_category(category, mode):
    if mode:
        pytest.importorskip("jax")
    lower, upper = CATEGORIES[category]
    means = [sign * 10.0**k for k in range(-3, 7) for sign in (-1, 1)]
    cases = np.array([(m, v) for m in means for v in 10.0 ** np.arange(-6, 13) if m**2 / (1 + v) < 1e7])
    # One by one: a search for several modes goes on until the last is found, which hides one that stopped too early.
    each = [pmep.tilted_moments("ordered_probit", 1, *case, mode=mode, lower=lower, upper=upper) for case in cases]
    found = np.array(each).T
    log_z, mean, variance = np.array([exact(m, v, lower, upper) for m, v in cases]).T
    sd = np.sqrt(variance)
    np.testing.assert_allclose(found[0], log_z, rtol=1e-9, atol=1e-9)
    assert np.max(np.abs(found[1] - mean) / sd) < 1e-6
    np.testing.assert_allclose(found[2], variance, rtol=1e-6)
