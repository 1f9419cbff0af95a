"""Compiled sites live as long as something uses them."""

import gc
import weakref

import numpy as np
import pymc as pm

import pymc_ep as pmep
from pymc_ep.forms import compiled_form
from pymc_ep.sites.compiled import compile_site


def fitted():
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 1.0)
        pm.CustomDist("y", level, logp=lambda y, mu: -np.log(np.pi) - (y - mu) ** 4, observed=[0.5, -0.2, 0.1])
        pmep.fit(draws=2, progressbar=False)
    return model


def test_the_site_of_a_model_s_own_density_goes_with_the_model():
    model = fitted()
    form = compiled_form(model)
    (site,) = form.sites
    own = site.site.interpreted, compile_site(site.site) is site
    assert own == (True, True)
    alive = [weakref.ref(one) for one in (model, form, site, site.site)]
    del model, form, site
    # The first pass finds the model, on whose end the cache lets go of its form, which the second one finds.
    gc.collect()
    gc.collect()
    assert [one() is None for one in alive] == [True] * 4


def test_registered_sites_stay_compiled():
    alive = weakref.ref(compile_site("poisson"))
    gc.collect()
    assert alive() is compile_site("poisson")
