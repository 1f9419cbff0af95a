"""What happens between link and likelihood: selections are followed, anything that mixes values is refused."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_ep as pmep
from pymc_ep.forms import compiled_form

COUNTS = np.array([3, 0, 7])
ORDER = np.array([2, 0, 1])
MIX = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
QUIET = {"draws": 0, "progressbar": False}


@pytest.mark.parametrize(
    "select",
    [
        pytest.param(lambda rate: rate[ORDER], id="permuted"),
        pytest.param(lambda rate: rate[::-1], id="reversed"),
        pytest.param(lambda rate: np.array([2.0, 1.0, 4.0]) * rate[ORDER], id="exposed"),
    ],
)
def test_a_selection_behind_the_link(select):
    """The same counts, put in the order of the latent variable by hand."""
    with pm.Model() as model:
        a = pm.Normal("a", [0.0, 1.0, 2.0], 1.0)
        pm.Poisson("y", select(pt.exp(a)), observed=COUNTS)
    place = {3: select(np.arange(3.0)), 1: select(np.ones(3))}
    exposure = place[1]
    order = (place[3] / exposure).astype(int)
    with pm.Model() as by_hand:
        a = pm.Normal("a", [0.0, 1.0, 2.0], 1.0)
        back = np.argsort(order)
        pm.Poisson("y", pt.exp(a + np.log(exposure[back])), observed=COUNTS[back])
    found, wanted = (pmep.fit(model=m, **QUIET) for m in (model, by_hand))
    np.testing.assert_allclose(found["posterior_mean"]["a"], wanted["posterior_mean"]["a"], rtol=1e-7)
    np.testing.assert_allclose(found["fit"]["log_evidence"], wanted["fit"]["log_evidence"], rtol=1e-7)


def test_groups_behind_the_link():
    group = np.array([0, 0, 1, 1, 1])
    with pm.Model() as model:
        rate = pt.exp(pm.Normal("a", 0.0, 1.0, shape=2))
        pm.Poisson("y", rate[group], observed=[1, 2, 3, 4, 5])
    form = compiled_form(model)
    np.testing.assert_allclose(form.prior(form.start).gaussian.covariance_matrix(), group[:, None] == group)


def test_a_matrix_that_is_transposed_behind_the_link():
    with pm.Model() as model:
        a = pm.Normal("a", np.arange(6.0).reshape(2, 3), 1.0)
        pm.Poisson("y", pt.exp(a).T, observed=np.ones((3, 2), dtype=int))
    form = compiled_form(model)
    np.testing.assert_allclose(form.prior(form.start).mean, [0, 3, 1, 4, 2, 5])


@pytest.mark.parametrize("mix", [lambda rate: MIX @ rate, pt.cumsum], ids=["matrix", "cumulative"])
def test_a_mixture_behind_the_link_is_refused(mix):
    with pm.Model() as model:
        pm.Poisson("y", mix(pt.exp(pm.Normal("a", 0.0, 1.0, shape=3))), observed=COUNTS)
    with pytest.raises(pmep.UnsupportedModelError, match="'y'"):
        pmep.fit(model=model, **QUIET)


def test_a_hyperparameter_whose_prior_depends_on_a_latent_variable():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0)
        f = pm.Normal("f", mu, 1.0, shape=3)
        pm.Poisson("y", pt.exp(f + mu), observed=COUNTS)
    with pytest.raises(pmep.UnsupportedModelError, match=r"'f' depends on a latent.*latent="):
        pmep.fit(model=model, latent=["mu"], **QUIET)


def test_a_vector_of_hyperparameters_that_grows():
    """Initial values and shapes follow the length of a dim."""
    with pm.Model(coords={"g": range(2)}) as model:
        y = pm.Data("y_data", [1.0, 2.0], dims="g")
        a = pm.Normal("a", 0.0, 1.0)
        pm.Normal("y", a * pt.ones_like(y), pm.HalfNormal("s", 1.0, dims="g"), observed=y, dims="g")
    assert pmep.fit(model=model, hyper="fixed", **QUIET)["fit"]["hyper_mode_s"].shape == (2,)
    with model:
        pm.set_data({"y_data": [1.0, 2.0, 0.0]}, coords={"g": range(3)})
    assert pmep.fit(model=model, hyper="fixed", **QUIET)["fit"]["hyper_mode_s"].shape == (3,)
