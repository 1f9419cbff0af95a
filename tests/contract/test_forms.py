"""What an outsider registers does what the house's own forms and methods do: the page about it, all the way through."""

import re
from dataclasses import replace
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import pytest
import scipy.stats
from pytensor.tensor.random.basic import GammaRV, LaplaceRV

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.contracts.method import TREATMENTS
from pymc_ep.diagnostics import diagnose
from pymc_ep.forms import FormEntry, forms, methods, registry
from pymc_ep.models.bilinear.form import Bilinear
from pymc_ep.sites import cells, get_site
from pymc_ep.sites.cells.likelihoods import BernoulliCells

PAGES = Path(__file__).parents[2] / "docs"
COUNTS = np.array([4, 0, 7])


def run_page(name):
    """The names that the code of a page defines."""
    text, namespace = (PAGES / name).read_text(encoding="utf-8"), {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        exec(compile(block, name, "exec"), namespace)
    return namespace


@pytest.fixture
def toy(monkeypatch):
    """The page's form and method, registered for one test."""
    monkeypatch.setattr(registry, "_FORMS", {entry.form: entry for entry in forms()})
    monkeypatch.setattr(registry, "_METHODS", {(m.name, m.form): m for m in methods()})
    before = pmep.supported()
    return run_page("adding_a_form.md") | {"before": before}


def counts():
    with pm.Model(coords={"site": list("abc")}) as model:
        pm.Poisson("y", pm.Gamma("rate", 2.0, 0.5, dims="site"), observed=COUNTS, dims="site")
    return model


def test_a_foreign_form_from_explaining_to_predicting(toy, tmp_path):
    model = counts()
    assert "counts of rates with gamma priors" in pmep.explain(model)
    assert "conjugate" in pmep.explain(model)
    found = pmep.fit(model=model, draws=500, random_seed=1, progressbar=False)
    fit = group(found, "fit")
    assert fit.attrs["method"] == "conjugate"
    np.testing.assert_allclose(found["posterior_mean"]["rate"], (2.0 + COUNTS) / 1.5)
    np.testing.assert_allclose(found["posterior_sd"]["rate"], np.sqrt(2.0 + COUNTS) / 1.5)
    draws = group(found, "posterior")["rate"]
    assert draws.dims == ("chain", "draw", "site")
    np.testing.assert_allclose(draws.mean(("chain", "draw")), (2.0 + COUNTS) / 1.5, rtol=0.1)
    above = toy["exceedance"](found, model, level=3.0)["rate"]
    np.testing.assert_allclose(above, scipy.stats.gamma(2.0 + COUNTS, scale=1 / 1.5).sf(3.0), atol=0.1)
    with pytest.raises(pmep.UnsupportedModelError, match=r"recommend takes.*'PairedSymbols'.*which offers exceedance"):
        pmep.recommend(found, model, site=["a"])
    path = str(tmp_path / "found.nc")
    found.to_netcdf(path)
    again = az.from_netcdf(path)
    predicted = pm.sample_posterior_predictive(again, model=model, random_seed=2, progressbar=False)
    np.testing.assert_allclose(
        group(predicted, "posterior_predictive")["y"].mean(("chain", "draw")), (2.0 + COUNTS) / 1.5, rtol=0.15
    )
    for refused in (lambda: pmep.predict(again, model, var_names=["rate"]), lambda: diagnose(again, model=model)):
        with pytest.raises(pmep.UnsupportedModelError, match="of 'y' is of the form GammaPoisson, whose posterior of"):
            refused()
    with pytest.raises(ValueError, match=r"method='ep' does not exist for this model \(GammaPoisson\); use one of"):
        pmep.fit("ep", model=model)


def test_a_foreign_method_has_rows_of_its_own_alone(toy):
    rows = [row for row in pmep.supported().rows if "conjugate" in row]
    assert rows == [("Poisson", "its rate is a Gamma", "conjugate", "conjugate", "fixed", "exceedance")]
    assert [row for row in pmep.supported().rows if row not in rows] == list(toy["before"].rows)


def test_a_recogniser_with_ops_is_asked_about_models_with_these(toy, monkeypatch):
    asked = []
    for model, ops, expected in ((counts(), (GammaRV,), 1), (counts(), (LaplaceRV,), 0), (counts(), (), 1)):
        own = toy["GammaPoisson"]
        entry = replace(registry._FORMS[own], recogniser=lambda *arguments: asked.append(1), ops=ops)
        monkeypatch.setitem(registry._FORMS, own, entry)
        asked.clear()
        with pytest.raises(pmep.UnsupportedModelError):
            registry.recognise(model)
        assert len(asked) == expected


def test_a_form_without_a_method_is_refused(toy, monkeypatch):
    monkeypatch.setattr(registry, "_METHODS", {k: e for k, e in registry._METHODS.items() if e.name != "conjugate"})
    with pytest.raises(pmep.UnsupportedModelError, match="of the form GammaPoisson, for which no method is registered"):
        pmep.fit(model=counts())


def test_what_was_never_registered_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "_FORMS", {entry.form: entry for entry in forms()})
    entry = FormEntry(int, lambda *arguments: None, lambda model, latent, wanted: "a form")
    pmep.register_form(entry)
    with pytest.raises(pmep.UnsupportedModelError, match="returned a str, which is not registered"):
        pmep.fit(model=counts())
    with pytest.raises(ValueError, match="A form int is registered already"):
        pmep.register_form(entry)


@pytest.mark.parametrize(
    ("register", "argument", "message"),
    [
        (pmep.register_form, lambda: GammaPoissonLike, "argument of register_form is <class .* no FormEntry; give"),
        (pmep.register_form, lambda: FormEntry("counts", dict), "form of the entry is 'counts', which is no type"),
        (pmep.register_method, lambda: "ep", "argument of register_method is 'ep', which is no Method; give"),
        (pmep.register_method, lambda: bilinear("vg", name=vars), "name of the method is .* which is no str"),
        (
            pmep.register_method,
            lambda: bilinear("vg", hyper="fixed"),
            "hyper of 'another' is 'fixed', which is no tuple",
        ),
        (
            pmep.register_method,
            lambda: bilinear("vg", hyper=("fix",)),
            r"hyper of 'another' is \('fix',\); give some of",
        ),
        (
            pmep.register_method,
            lambda: bilinear("vg", hyper=("sample",), evidence_op=None),
            "has 'sample', which needs evidence_op= and",
        ),
        (pmep.register_verb, lambda: (int, "trade", print), "There is no form 'int': call register_form for it first"),
        (
            pmep.register_verb,
            lambda: (Bilinear, "recommend", print),
            "verb 'recommend' for Bilinear is registered already",
        ),
        (
            pmep.register_verb,
            lambda: (Bilinear, "predict", print),
            "'predict', which is what all results offer; choose",
        ),
        (pmep.register_verb, lambda: (Bilinear, "next item", print), "'next item', which is no name of a function"),
        (pmep.register_verb, lambda: (Bilinear, "trade", "x"), "The verb 'trade' is a str; give a function of idata"),
        (pmep.register_form, lambda: FormEntry(int, dict, verbs={"loo": print}), "called 'loo', which is what all"),
        (pmep.register_site, lambda: "poisson", "argument of register_site is 'poisson', which is no Site; give"),
        (pmep.register_site, lambda: poisson(parameters="nu"), "parameters of 'another' is 'nu', which is no tuple"),
        (pmep.register_site, lambda: poisson(domain="counts"), "domain 'counts'; there are .* Did you mean 'count'"),
        (cells.register_cell_site, lambda: (get_site("cloglog"), 1), "in register_cell_site is Site.* which is no str"),
        (
            cells.register_cell_site,
            lambda: ("cloglog", get_site("cloglog")),
            "of 'cloglog' .* no CellSite without 'spr",
        ),
        (cells.register_cell_site, lambda: ("cloglog", BernoulliCells), "but a class; give an instance of it"),
        (cells.register_cell_site, lambda: ("cloglog", BernoulliCells(), "yes"), "is 'yes', no CellSite without"),
    ],
)
def test_what_is_nothing_to_register_is_refused(register, argument, message):
    given = argument()
    with pytest.raises((TypeError, ValueError), match=message):
        register(*given) if isinstance(given, tuple) else register(given)


class GammaPoissonLike:
    """A form where its entry is wanted."""


def bilinear(method, **fields):
    own = next(one for one in methods() if one.name == method)
    return replace(own, **{"name": "another"} | fields)


def poisson(**fields):
    return replace(get_site("poisson"), **{"name": "another"} | fields)


@pytest.mark.parametrize("hyper", ["auto", *TREATMENTS])
@pytest.mark.parametrize("offered", [("fixed",), ("optimize",), ("fixed", "integrate")])
def test_a_treatment_that_a_method_does_not_offer_is_refused(offered, hyper, monkeypatch, factorised):
    """Whoever asks for it: the user, or the method's own choice for "auto", which here is to optimise."""

    def solve(call):
        raise NotImplementedError(call.hyper)

    monkeypatch.setattr(registry, "_METHODS", {(m.name, m.form): m for m in methods()})
    pmep.register_method(bilinear("vg", hyper=offered, solve=solve))
    chosen = "optimize" if hyper == "auto" else hyper
    learned, fixed = factorised
    expected = (NotImplementedError, chosen) if chosen in offered else (ValueError, refusal(hyper, offered))
    with pytest.raises(expected[0], match=expected[1]):
        pmep.fit("another", model=learned, hyper=hyper)
    if hyper == "auto":
        # Without hyperparameters, a fit is the same under every treatment.
        with pytest.raises(NotImplementedError, match=chosen if chosen in offered else offered[0]):
            pmep.fit("another", model=fixed)


def refusal(hyper, offered):
    what = "hyper='auto' comes to 'optimize', which" if hyper == "auto" else f"hyper='{hyper}'"
    return rf"{what} is not offered by method='another'; use one of ('auto', )?{', '.join(map(repr, offered))}"


@pytest.fixture(scope="module")
def factorised():
    """Models of cells with a hyperparameter and without."""

    def build(learned):
        with pm.Model() as model:
            V, U = (
                pm.Normal("V", 0, pm.HalfNormal("s", 1) if learned else 1, shape=(3, 1)),
                pm.Normal("U", shape=(2, 1)),
            )
            pmep.BilinearPoisson("y", V, U, [0, 1, 2], [0, 1, 0], observed=[0, 2, 1])
        return model

    return build(True), build(False)


def test_a_foreign_form_learns_its_hyperparameters(monkeypatch):
    """By one log evidence: maximised, integrated over and sampled, against quadrature over both of them."""
    monkeypatch.setattr(registry, "_FORMS", {entry.form: entry for entry in forms()})
    monkeypatch.setattr(registry, "_METHODS", {(m.name, m.form): m for m in methods()})
    page = run_page("adding_hyperparameters.md")
    model, integrated, y = page["model"], page["idata"], np.array([4, 0, 7, 2, 1, 3])
    grid = np.linspace(-5.0, 4.0, 300)
    log_a, log_b = np.meshgrid(grid, grid, indexing="ij")
    a, b = np.exp(log_a), np.exp(log_b)
    log_prior = scipy.stats.gamma(2).logpdf(a) + scipy.stats.gamma(2).logpdf(b)
    log_density = log_prior + sum(scipy.stats.nbinom(a, b / (b + 1)).logpmf(count) for count in y)
    weights = np.exp(log_density + log_a + log_b)
    total = weights.sum()
    mean = (weights * a).sum() / total
    sd = np.sqrt((weights * (a - mean) ** 2).sum() / total)
    rate = np.array([(weights * (a + count) / (b + 1)).sum() for count in y]) / total
    exact_log_z = np.log(total * (grid[1] - grid[0]) ** 2)
    np.testing.assert_allclose(float(group(integrated, "fit")["log_evidence"]), exact_log_z, atol=1e-3)
    quick = {
        "random_seed": 1,
        "progressbar": False,
        "chains": 2,
        "draws": 300,
        "sample_kwargs": {"cores": 1, "tune": 300},
    }
    sampled = pmep.fit(model=model, hyper="sample", **quick)
    for found, tolerance in ((integrated, 0.02), (sampled, 0.25)):
        np.testing.assert_allclose(found["posterior_mean"]["a"], mean, atol=tolerance * sd)
        np.testing.assert_allclose(found["posterior_mean"]["rate"], rate, atol=tolerance)
    mode = group(pmep.fit(model=model, hyper="optimize", progressbar=False), "fit")
    best = np.unravel_index(np.argmax(log_density), a.shape)
    np.testing.assert_allclose(mode["hyper_mode_a"], a[best], rtol=grid[1] - grid[0])
    held = pmep.fit(model=model, hyper="fixed", start={"a": 2.0, "b": 1.0}, progressbar=False)
    np.testing.assert_allclose(held["posterior_mean"]["rate"], (2.0 + y) / 2.0)


def test_every_form_has_a_method_and_rows():
    for entry in forms():
        assert [method for method in methods() if method.form is entry.form]
        assert entry.rows()


def test_a_second_method_of_matrices_is_one_of_theirs(monkeypatch):
    """Recommendations come from the posterior of a fit, whatever its method is called."""
    own = next(method for method in methods() if method.name == "vg")
    monkeypatch.setattr(registry, "_METHODS", {(m.name, m.form): m for m in methods()})
    pmep.register_method(replace(own, name="another"))
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        V, U = (pm.Normal(name, 0.0, 1.0, shape=(4, 2)) for name in "VU")
        pmep.BilinearPoisson("y", V, U, [0, 1, 2, 3, 0], [1, 0, 3, 2, 2], observed=rng.poisson(2.0, 5))
    results = [pmep.fit(method, model=model, random_seed=1, progressbar=False) for method in ("vg", "another")]
    first, second = (pmep.recommend(found, model, V=[0, 1], n=2) for found in results)
    assert first.equals(second)


def test_a_method_without_moments_is_used_like_any_other(monkeypatch, tmp_path):
    """The method of the page on methods, whose modes are those of both matrices: no row can be bettered alone."""
    monkeypatch.setattr(registry, "_METHODS", {(m.name, m.form): m for m in methods()})
    namespace = run_page("adding_a_method.md")
    model, idata = namespace["model"], namespace["idata"]
    assert "als" in pmep.explain(model) and "als" in pmep.supported()
    path = str(tmp_path / "found.nc")
    idata.to_netcdf(path)
    again = az.from_netcdf(path)
    mode = group(again, "posterior_mode")
    V, U, table = mode["V"].to_numpy(), mode["U"].to_numpy(), namespace["table"]
    best = np.linalg.solve(U.T @ U / 0.01 + np.eye(2), U.T @ table.T / 0.01).T
    np.testing.assert_allclose(V, best, atol=0.01)
    assert pmep.similar(again, model, column=["a"], n=2)["neighbour"].shape == (1, 2)
    found = pmep.log_predictive(again, model, {"y": {"rows": [0], "cols": ["a"], "observed": table[:1, 0]}})
    exact = scipy.stats.norm(V[0] @ U[0], 0.1).logpdf(table[0, 0])
    np.testing.assert_allclose(found["y"].values[0], exact, rtol=1e-6)
