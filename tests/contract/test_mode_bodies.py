"""A mode that is asked for is used, and changes no answer."""

import warnings
from importlib import import_module

import numpy as np
import pytest

import pymc_ep as pmep
from pymc_ep.compat import c_mode, group
from pymc_ep.forms import compiled_form, get_method
from tests.contract.test_symmetries import CASES, OPTIONS, QUIET, SAME, fits, shared

MODES = {"c": c_mode(), "jax": "JAX", "numba": "NUMBA"}


def methods_once():
    """A model for each form and method, at fixed hyperparameters where the method takes them so."""
    found = {}
    for case in CASES:
        form = type(compiled_form(shared(case.write, SAME)).form)
        for method, hyper in sorted(fits(case), key=lambda pair: pair[1] != "fixed"):
            found.setdefault((form, method), (case, method, hyper))
    return [pytest.param(*one, id=f"{one[0].write.__name__}-{one[1]}") for one in found.values()]


def evidence_and_means(case, method, hyper, **more):
    with warnings.catch_warnings():
        # Of few data.
        warnings.simplefilter("ignore", UserWarning)
        model, options = shared(case.write, SAME), OPTIONS.get(method, {})
        found = pmep.fit(method, model=model, hyper=hyper, random_seed=1, progressbar=False, **QUIET, **options, **more)
    fit, means = group(found, "fit"), group(found, "posterior_mode" if method == "map" else "posterior_mean")
    evidence = float(fit["log_evidence"]) if "log_evidence" in fit else 0.0
    return evidence, {name: means[name].to_numpy() for name in case.axes if name in means}


@pytest.fixture(scope="module")
def events_of_jax():
    """Names of what JAX did and timed, such as compilations."""
    jax, names = pytest.importorskip("jax"), []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: names.append(name))
    return names


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("case", "method", "hyper"), methods_once())
def test_a_mode_changes_no_answer(case, method, hyper, mode, request):
    form = compiled_form(shared(case.write, SAME)).form
    if mode == "jax" and not get_method(method, form).jax:
        with pytest.raises((ValueError, pmep.UnsupportedModelError), match="JAX"):
            evidence_and_means(case, method, hyper, compile_kwargs={"mode": "JAX"})
        return
    evidence, means = evidence_and_means(case, method, hyper)
    if mode == "jax":
        events = request.getfixturevalue("events_of_jax")
        import_module("jax").clear_caches()
        events.clear()
    found, moved = evidence_and_means(case, method, hyper, compile_kwargs={"mode": MODES[mode]})
    assert mode != "jax" or any("compile" in name for name in events)
    np.testing.assert_allclose(found, evidence, rtol=1e-6)
    for name, mean in means.items():
        np.testing.assert_allclose(moved[name], mean, atol=1e-4 * np.abs(mean).max(), err_msg=name)
