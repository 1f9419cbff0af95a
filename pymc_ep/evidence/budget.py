"""Limits on the fits and draws of an integration over hyperparameters, from the size of the model.

Operations are counted, not timed: a result does not depend on the machine.
"""

from pymc_ep.contracts.form import HyperForm
from pymc_ep.engines.base import Status

__all__ = ["MOST_DIMENSIONS", "choose", "fits_of", "most_draws", "most_fits", "most_posteriors"]

MOST_DIMENSIONS = 25
"""Most hyperparameters that are integrated over. With 25 of them a fit adds 26 rows to the emulator's matrix, so that
`_MOST_ROWS` are the rows of 230 fits."""
_OPERATIONS = 2e12
"""Floating-point operations of all fits together, some minutes on one core."""
_LEAST_FITS, _MOST_FITS = (10, 6), (60, 25)
"""Least and most fits as (a, b), for a + b p with p hyperparameters. The least covers the 2 p fits of the first frame
and one round that tests the emulator, 6 + 3 p; the most trades time for accuracy of the emulator."""
_OPTIMISED, _INTEGRATED = 20, 30
"""Average number of fits of a search for the mode, and of an integration for each hyperparameter."""
_SAMPLED = 5e4
"""Fits that NUTS takes for 1000 draws after 1000 steps of tuning, to an order of magnitude: 25 leapfrog steps each."""
_MOST_ROWS = 6000
"""Most rows of the emulator's matrix, p + 1 for the value and the gradient of each fit. It is factorised in each round,
in seconds at this size."""
_LEAST_POSTERIORS, _POSTERIORS, _MOST_POSTERIORS = 50, (50, 50), 1000
"""Number of draws of the hyperparameters at which a posterior of the latent variables is computed: the least; the usual
number a + b p, as (a, b); and the most. With the usual number, means differ from means over 4000 draws by 0.001 to
0.002 standard deviations for one or two hyperparameters, and by 0.007 for eight; standard deviations differ by 0.3 and
1 per cent."""
_VARIATION = 0.4
"""Variation of posterior means with the hyperparameters, in posterior standard deviations, to which the usual number of
draws, `_POSTERIORS`, belongs. It is typical of small models: 0.43 in eight schools and a GP of 200 bits. The variation
is 0.23 for 4000 crossed bits, 0.13 in a walk of 10^4 counts, 0.07 in a map of 10^4, and 0.04 for 5000 groups."""
_SHARES = 1.0 / 3.0, 2.0
"""Least and largest ratio of the number of draws to the usual number, however little or much posterior means vary."""


def _least_fits(form: HyperForm) -> int:
    return _LEAST_FITS[0] + _LEAST_FITS[1] * form.start.size


def most_fits(form: HyperForm) -> int:
    """Return the largest number of fits of an integration, without the search for the mode."""
    p = form.start.size
    affordable = _OPERATIONS / form.operations
    most = min(_MOST_FITS[0] + _MOST_FITS[1] * p, _MOST_ROWS // (p + 1), affordable)
    return int(max(most, _least_fits(form)))


def fits_of(form: HyperForm, hyper: str) -> int:
    """Return the average number of fits for a treatment of the hyperparameters, such as "integrate"."""
    if hyper == "fixed" or not form.start.size:
        return 1
    return min(_INTEGRATED * form.start.size, most_fits(form)) if hyper == "integrate" else _OPTIMISED


def most_draws(form: HyperForm) -> int:
    """Return the number of draws of the hyperparameters: the form's default number of draws in four chains."""
    return 4 * form.most_draws


def most_posteriors(form: HyperForm, variation: float = _VARIATION) -> int:
    """Return the number of draws of the hyperparameters at which the latent variables have a posterior.

    `variation` is the largest variation of a predictor's posterior mean with the hyperparameters, in posterior standard
    deviations. An average over m draws that are stratified in p dimensions has an error in proportion to
    variation m^(-1/2 - 1/p). The number is at least a third of the usual one, as predictors without data may vary more.
    """
    p = form.start.size
    least, most = _SHARES
    # At a given error, variation m^(-1/2 - 1/p), m is in proportion to variation^(1 / (1/2 + 1/p)).
    share = min(most, max(least, (variation / _VARIATION) ** (1.0 / (0.5 + 1.0 / max(p, 1)))))
    wanted = max(share * (_POSTERIORS[0] + _POSTERIORS[1] * p), _LEAST_POSTERIORS)
    affordable = max(_OPERATIONS / form.operations, _LEAST_POSTERIORS)
    return int(min(wanted, affordable, _MOST_POSTERIORS, most_draws(form)))


def choose(form: HyperForm, *, chains: bool) -> tuple[str, Status]:
    """Return the default treatment of the hyperparameters, and a status with the reason if that is not integration.

    `chains` says whether sampling is possible.
    """
    p, least = form.start.size, _least_fits(form)
    if p > MOST_DIMENSIONS:
        many = f"{p} hyperparameters are too many for an emulator of the evidence"
        if chains and _SAMPLED * form.operations < _OPERATIONS:
            return "sample", Status(True, f"{many}: they are sampled by NUTS on it")
        without = "" if chains else ", with draws and without checkpoint="
        return "optimize", Status(
            False,
            f"{many}: they are at their mode, with a Gaussian about it; sample them with hyper='sample'{without}, or "
            f"take hyper='optimize' if a mode will do",
        )
    if least * form.operations > _OPERATIONS:
        return "optimize", Status(
            True,
            f"hyperparameters at their mode, with a Gaussian about it, as fits of this size are dear; "
            f"hyper='integrate' makes {least} of them or more",
        )
    return "integrate", Status(True, "")
