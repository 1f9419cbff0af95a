"""Distributions that users register: as the page spells it, of both kinds of Ops, and what is none of these."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_ep as pmep
from pymc_ep.graphs import families
from pymc_ep.sites import Site, base

OWN = [one for one in vars(pm).values() if isinstance(one, type) and issubclass(one, pm.Distribution)]


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    """Copies, so that nothing stays registered."""
    for module, name in ((families, "_FAMILIES"), (base, "_REGISTRY")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))


def weibull_logp(y, eta, alpha):
    z = pt.log(y) - eta
    return pt.log(alpha) - pt.log(y) + alpha * z - pt.exp(alpha * z)


def test_a_distribution_whose_op_is_a_graph_has_the_site_that_was_registered():
    """Weibull's: its evidence by quadrature of SciPy's density over each predictor."""
    y = np.array([0.3, 1.0, 4.0])
    pmep.register_site(Site("weibull", ("alpha",), "positive", True, weibull_logp, interpreted=True))
    pmep.register_family(pm.Weibull.rv_type, predictor=1, links={"exp": "weibull"}, parameters={"alpha": 0})
    with pm.Model() as model:
        pm.Weibull("y", alpha=1.5, beta=pm.math.exp(pm.Normal("f", 0.2, 0.7, shape=3)), observed=y)
    assert "weibull" in pmep.explain(model)
    found = pmep.fit(model=model, draws=0, progressbar=False)
    z = np.linspace(-8, 8, 4001)
    mass = stats.norm.pdf(z) * (z[1] - z[0])
    exact = np.log(stats.weibull_min.pdf(y[:, None], 1.5, scale=np.exp(0.2 + 0.7 * z)) @ mass).sum()
    np.testing.assert_allclose(float(found["fit"]["log_evidence"]), exact, atol=1e-6)


def test_every_distribution_with_an_op_can_be_registered_and_nothing_else():
    graphs = 0
    for one in OWN:
        if getattr(one, "rv_type", None) is not None:
            pmep.register_family(one.rv_type, predictor=0, links={})
        wrong = [one, getattr(one, "rv_op", None), None]
        if not hasattr(getattr(one, "rv_op", None), "ndim_supp"):
            # That of a graph is a function, whose type is that of all methods.
            graphs += 1
            wrong.append(type(wrong[1]))
        for op_type in wrong:
            with pytest.raises(TypeError, match=r"is no type of a random variable's Op; give the attribute rv_type"):
                pmep.register_family(op_type, predictor=0, links={})
    assert graphs > 5
    with pytest.raises(TypeError, match="predictor in register_family is 'mu', which is no int; give the position"):
        pmep.register_family(pm.Gumbel.rv_type, predictor="mu", links={})
    with pytest.raises(
        TypeError, match="links in register_family is 'identity', which is no dict; give names of sites"
    ):
        pmep.register_family(pm.Gumbel.rv_type, predictor=0, links="identity")
