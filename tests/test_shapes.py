"""Observations of another shape than their predictor: each is refused with both shapes, by name, with a cure."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.operators import Convolution2D, Gradient2D
from pymc_ep.results import fit_group

SHAPE = (6, 6)
QUIET = {"method": "ep", "draws": 0, "progressbar": False}
COUNTS = np.random.default_rng(0).poisson(np.where(np.arange(6) < 3, 2.0, 6.0), SHAPE)
BLUR = Convolution2D(SHAPE, np.outer([0.2, 0.6, 0.2], [0.1, 0.7, 0.2]), boundary="periodic")
FLAT = np.eye(36) + 0.1


def field():
    return pmep.SparseField("u", operator=Gradient2D(SHAPE), potential=pm.Laplace.dist(0, 1.0))


@pytest.mark.parametrize("method", ["ep", "dsb", "map"])
def test_exchanged_observations_of_another_shape(method):
    with pm.Model() as model:
        counts = pm.Data("counts", COUNTS)
        pmep.SoftplusPoisson("y", pmep.apply_operator(BLUR, field()), observed=counts)
        pm.set_data({"counts": COUNTS[:5]})
    with pytest.raises(
        pmep.InvalidDataError, match=r"of 'y' have shape \(5, 6\).*predictor has shape \(6, 6\).*as many values"
    ):
        pmep.fit(model=model, **(QUIET | {"method": method}))


@pytest.mark.parametrize(
    "distribution",
    [
        pmep.RectifiedPoisson,
        lambda *args, **kwargs: pmep.RectifiedPoisson(*args, zero_mass=False, **kwargs),
        pmep.SoftplusPoisson,
        lambda name, eta, **kwargs: pmep.RectifiedPoisson(name, eta=eta, **kwargs),
    ],
    ids=["rectified", "cut", "softplus", "by keyword"],
)
@pytest.mark.parametrize(
    ("operator", "counts", "message"),
    [
        (BLUR, COUNTS[:5], r"shape \(5, 6\).*predictor has shape \(6, 6\).*as many values"),
        (BLUR, COUNTS[0], r"shape \(6,\).*predictor has shape \(6, 6\).*as many values"),
        (BLUR, COUNTS.ravel(), r"shape \(36,\).*predictor has shape \(6, 6\).*Reshape one"),
        (FLAT, COUNTS, r"shape \(6, 6\).*predictor has shape \(36,\).*Reshape one.*matrices"),
    ],
    ids=["a row less", "a row", "ravelled", "not ravelled"],
)
def test_counts_of_another_shape(distribution, operator, counts, message):
    """Where the model is written, before PyTensor finds that shapes do not broadcast."""
    with pm.Model(), pytest.raises(pmep.InvalidDataError, match=f"observations of 'y' have {message}"):
        distribution("y", pmep.apply_operator(operator, field()), observed=counts)


def test_shared_counts_of_another_shape():
    """Their sides may change, the number of these cannot."""
    with (
        pm.Model(),
        pytest.raises(pmep.InvalidDataError, match=r"'y' have shape \(\?,\).*predictor has shape \(6, 6\)"),
    ):
        pmep.RectifiedPoisson("y", pmep.apply_operator(BLUR, field()), observed=pm.Data("counts", COUNTS.ravel()))


def test_pixels_of_another_shape():
    """PyMC's own distributions take these, and the form does not."""
    for observed, sigma, message in (
        (np.ones((6, 6)), 1.0, r"shape \(6, 6\).*predictor has shape \(1, 36\).*Reshape one"),
        (np.ones(30), 1.0, r"shape \(30,\).*predictor has shape \(36,\).*as many values"),
        (np.ones(36), np.ones(6), r"shape \(36,\).*parameter beside the predictor has shape \(6,\)"),
    ):
        with pm.Model() as model:
            pm.Normal("y", pmep.apply_operator(FLAT, field()), sigma, observed=observed)
        with pytest.raises(pmep.InvalidDataError, match=f"observations of 'y' have {message}"):
            pmep.fit(model=model, **QUIET)


def test_one_predictor_of_many_counts():
    """Shapes that broadcast are not refused."""
    with pm.Model():
        level = pm.Normal("level", 3.0, 1.0)
        row = pm.Normal("row", 3.0, 1.0, shape=(1, 6))
        pmep.RectifiedPoisson("a", level, observed=COUNTS)
        pmep.SoftplusPoisson("b", row, observed=COUNTS)
        pmep.RectifiedPoisson("c", level, observed=3)
        assert bool(fit_group(pmep.fit(**QUIET))["converged"])
