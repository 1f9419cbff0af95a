"""Wrong input to wavelet trees: each is refused with the name of the variable, what is wrong and a cure."""

import re

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.results import fit_group

SHAPE = (8, 8)
OBSERVED = np.random.default_rng(0).normal(size=SHAPE)


def tree(**options):
    given = {
        "shape": SHAPE,
        "levels": 2,
        "low": pm.Normal.dist(0, 0.1),
        "high": pm.StudentT.dist(nu=2.1, sigma=np.array(1.0)),
    } | options
    return pmep.WaveletTree("u", **{name: value for name, value in given.items() if value is not ...})


def same():
    scale = pm.HalfNormal("scale", shape=2)
    return tree(low=pm.Laplace.dist(0, scale), high=pm.Laplace.dist(0, scale))


INVALID = {
    # What the transform takes
    "sides": (
        lambda: tree(levels=4),
        r"multiples of 16.*\(8, 8\).*levels=3 is the most.*np\.pad\(image, \(\(0, 8\), \(0, 8\)\).*to shape \(16, 16\)",
    ),
    "one side": (lambda: tree(shape=(8, 12), levels=3), r"multiples of 8.*\(8, 12\).*levels=2 is the most.*\(8, 16\)"),
    "odd side": (lambda: tree(shape=(8, 9)), r"multiples of 4.*\(8, 9\).*a side is odd.*\(8, 12\)"),
    "a signal": (lambda: tree(shape=8), r"shape must be a tuple of 2 sides.*\(8,\)"),
    "a stack": (lambda: tree(shape=(2, 8, 8)), r"shape must be a tuple of 2 sides.*\(2, 8, 8\)"),
    "no shape": (lambda: tree(shape=...), r"needs its shape=\(rows, columns\), or dims="),
    "half a pixel": (lambda: tree(shape=(8.9, 8)), r"shape=\(8\.9, 8\) must be whole numbers"),
    "an unknown side": (lambda: tree(shape=(8, None)), r"shape=\(8, None\) must be whole numbers"),
    "digits": (lambda: tree(shape="88"), "shape='88' must be whole numbers"),
    "several": (lambda: tree(size=3), "size=3 of a WaveletTree, which is one image"),
    "no levels": (lambda: tree(levels=0), "levels must be an integer of at least 1, not 0"),
    "levels as a float": (lambda: tree(levels=3.0), r"levels must be an integer.*not 3\.0"),
    "levels as a bool": (lambda: tree(levels=True), "levels must be an integer.*not True"),
    "levels as a word": (lambda: tree(levels="two"), "levels must be an integer.*not 'two'"),
    "not orthonormal": (lambda: tree(wavelet="bior2.2"), r"'bior2\.2' is not orthonormal; take one of haar"),
    "no wavelet": (lambda: tree(wavelet="db77"), "no discrete wavelet 'db77'.*haar"),
    # Scales
    "long scales": (lambda: tree(low=pm.Normal.dist(0, np.ones(3))), "low=.*3 values.*2 levels; give as many.*or one"),
    "long freedom": (
        lambda: tree(high=pm.StudentT.dist(nu=np.ones(3), sigma=1)),
        "high=.*3 values.*2 levels; give as many",
    ),
    "long variable": (lambda: tree(low=pm.Normal.dist(0, pm.HalfNormal("s", shape=3))), "low=.*3 values.*2 levels"),
    "long by dims": (
        lambda: tree(low=pm.Normal.dist(0, pm.HalfNormal("s", dims="three"))),
        "low=.*3 values.*2 levels",
    ),
    "scaling by level": (lambda: tree(scaling=pm.Normal.dist(0, np.ones(2))), "scaling=.*2 values.*1 level;"),
    "negative scale": (
        lambda: tree(low=pm.Normal.dist(0, np.array([1.0, -1.0]))),
        r"low=.*scale -1\.0 at index 1.*positive",
    ),
    "infinite scale": (lambda: tree(high=pm.Laplace.dist(0, np.inf)), "high=.*scale inf; .*positive and finite"),
    "negative scaling": (lambda: tree(scaling=pm.Normal.dist(0, np.array(0.0))), r"scaling=.*scale 0\.0.*positive"),
    # States
    "the same": (lambda: tree(high=pm.Normal.dist(0, 0.1)), "low= and high=.*same distribution.*another scale"),
    "the same by level": (lambda: tree(high=pm.Normal.dist(0, np.full(2, 0.1))), "low= and high=.*same distribution"),
    "the same variable": (same, "low= and high=.*same distribution"),
    "the same scaling": (lambda: tree(scaling=(pm.Normal.dist(0, 1),) * 2), r"scaling\[0\]= and scaling\[1\]=.*same"),
    "three scalings": (
        lambda: tree(scaling=[pm.Normal.dist(0, s) for s in (1, 2, 3)]),
        "scaling=.*3 distributions; give one without brackets, or a pair",
    ),
    # Probabilities
    "root of one": (lambda: tree(transition={"root": 1.0}), r"transition\['root'\].*holds 1\.0.*between 0 and 1"),
    "root of nan": (lambda: tree(transition={"root": np.nan}), r"transition\['root'\].*holds nan.*between 0 and 1"),
    "child outside": (
        lambda: tree(transition={"child": [[0.1, 1.2]]}),
        r"transition\['child'\].*holds 1\.2 at index \(0, 1\).*between 0 and 1",
    ),
    "flat child": (lambda: tree(transition={"child": [0.1, 0.9]}), r"'child'\].*shape \(2,\).*2 levels.*\(1, 2\)"),
    "child a level": (
        lambda: tree(transition={"child": np.full((2, 2), 0.1)}),
        r"'child'\].*shape \(2, 2\).*must be \(1, 2\)",
    ),
    "child by dims": (
        lambda: tree(transition={"child": pm.Beta("c", 2, 2, dims=("three", "two"))}),
        r"'child'\].*shape \(3, 2\).*must be \(1, 2\)",
    ),
    "roots": (lambda: tree(transition={"root": [0.1, 0.2]}), r"'root'\].*shape \(2,\).*must be \(\)"),
    "nothing": (lambda: tree(transition={"root": None}), r"'root'\].*is None; give numbers or a random variable"),
    "a word": (lambda: tree(transition={"child": "often"}), r"'child'\].*is 'often'; give numbers.*\(1, 2\)"),
    "unknown key": (lambda: tree(transition={"roots": 0.1}), "has 'roots', which is none.*'root' and 'child'"),
    "no pair": (lambda: tree(transition={"scaling": 0.1}), "has 'scaling', which is none.*no pair for scaling="),
    "no children": (
        lambda: tree(levels=1, transition={"child": [[0.1, 0.9]]}),
        "has 'child', which is none.*with 1 level .*are 'root'",
    ),
    "no mapping": (lambda: tree(transition=[0.1]), r"transition=\[0\.1\].*no mapping; give a dict"),
}
UNSUPPORTED = {
    "location": (lambda: tree(low=pm.Normal.dist(1.0, 0.1)), "low=.*location that is not the constant 0.*Subtract"),
    "random location": (
        lambda: tree(high=pm.Laplace.dist(pm.Normal("m"), 1.0)),
        "high=.*location that is not the constant 0",
    ),
    "another family": (lambda: tree(low=pm.Cauchy.dist(0, 1)), r"low=.*none of pm\.Laplace\.dist.*use one of these"),
    "a number": (lambda: tree(high=1.0), r"high=1\.0.*none of pm\.Laplace\.dist"),
    "scaling as a number": (lambda: tree(scaling=3.0), r"scaling=3\.0.*none of pm\.Laplace\.dist"),
    "a variable": (lambda: tree(low=pm.Normal("v", 0, 1)), "low=.*'v', a variable of the model; give.*dist"),
}


@pytest.mark.parametrize("case", [*INVALID, *UNSUPPORTED])
def test_at_building(case):
    """The message begins with the variable, and nothing of it is left in the model."""
    build, message = (INVALID | UNSUPPORTED)[case]
    error = pmep.InvalidDataError if case in INVALID else pmep.UnsupportedModelError
    model = pm.Model(coords={"two": range(2), "three": range(3)})
    with model, pytest.raises(error, match=rf"^'u': .*{message}"):
        build()
    assert not [name for name in model.named_vars if name.startswith("u")]


def test_outside_of_a_model_all_probabilities_are_needed():
    options = {"shape": SHAPE, "levels": 2, "low": pm.Normal.dist(0, 1), "high": pm.Laplace.dist(0, 4)}
    with pytest.raises(pmep.InvalidDataError, match=r"transition= of a WaveletTree lacks 'child'.*give its value"):
        pmep.WaveletTree.dist(transition={"root": 0.1}, **options)
    pmep.WaveletTree.dist(transition={"root": 0.1, "child": [[0.1, 0.9]]}, **options)


# At the fit


def model_of(observe=None, **options):
    with pm.Model() as model:
        u = tree(transition={"root": 0.3, "child": [[0.1, 0.9]]} | options.pop("transition", {}), **options)
        if observe is None:
            pm.Normal("y", u, 1.0, observed=OBSERVED)
        else:
            observe(u)
    return model


def fit(model, method=None, **options):
    return pmep.fit(method, model=model, draws=0, progressbar=False, **options)


def refused(model, error, message, method=None, **options):
    with pytest.raises(error, match=message):
        fit(model, method, **options)


def test_ep_updates_all_coefficients_together():
    message = "The prior of 'u', a tree of .* and student_t.*one factor of all its coefficients.*schedule='parallel'"
    refused(model_of(), pmep.UnsupportedModelError, message, "ep", schedule="sequential")


def test_averages_of_ep_hold_hyperparameters():
    def learned():
        with pm.Model() as model:
            u = tree(low=pm.Normal.dist(0, pm.HalfNormal("low", 0.1)), high=pm.Normal.dist(0, 3.0))
            pm.Normal("y", u, 1.0, observed=OBSERVED)
        return model

    refused(learned(), ValueError, "translations=4 holds hyperparameters", "ep", translations=4, hyper="integrate")
    with pytest.raises(ValueError, match=r"translations=4 needs.*'optimize' or 'fixed'"):
        pmep.fit("ep", model=learned(), progressbar=False, draws=10, chains=1, hyper="sample", translations=4)
    refused(learned(), ValueError, "translations=0 must be a whole number of at least 1", "ep", translations=0)
    refused(learned(), ValueError, "translations=100, but.*16 different translations", "ep", translations=100)


def test_a_method_that_does_not_exist():
    refused(model_of(), ValueError, "method='vb' does not exist.*use one of: 'dsb', 'map', 'ep'", "vb")


def test_treatments_of_hyperparameters():
    def learned():
        with pm.Model() as model:
            u = tree(low=pm.Normal.dist(0, pm.HalfNormal("low", 0.1)))
            pm.Normal("y", u, 1.0, observed=OBSERVED)
        return model

    refused(learned(), ValueError, "hyper='fixed'", "map", hyper="optimize")
    refused(learned(), ValueError, "hyper='integrate' is not offered by method='dsb'.*optimize", hyper="integrate")


@pytest.mark.parametrize("method", ["dsb", "map", "ep"])
def test_states_that_are_equal_and_held(method):
    """By default both scales begin at the same value; where only one level has the same, states are two still."""
    with pm.Model() as model:
        low, high = (pm.HalfNormal(name, 1, shape=2) for name in ("low", "high"))
        u = tree(low=pm.Normal.dist(0, low), high=pm.Normal.dist(0, high))
        pm.Normal("y", u, 1.0, observed=OBSERVED)
    refused(model, pmep.InvalidDataError, "states of 'u' are the same.*by start=", method, hyper="fixed")
    start = {"low": np.array([0.5, 0.5]), "high": np.array([0.5, 2.0])}
    assert fit_group(fit(model, method, hyper="fixed", start=start))["converged"]


@pytest.mark.parametrize(
    ("observe", "site"),
    [
        (lambda u: pmep.RectifiedPoisson("y", u, observed=np.ones(SHAPE, dtype=int)), "rectified_poisson"),
        (lambda u: pm.Poisson("y", pm.math.exp(u), observed=np.ones(SHAPE, dtype=int)), "poisson"),
    ],
)
def test_likelihoods_without_bound(observe, site):
    """EP alone takes these, and is what a call without a method takes."""
    model = model_of(observe, low=pm.Normal.dist(0, 0.2), high=pm.Normal.dist(0, 2.0))
    message = (
        f"'y' has a {site} likelihood, below which no Gaussians.*use method='ep', or a likelihood.*SoftplusPoisson"
    )
    refused(model, pmep.UnsupportedModelError, message, "dsb")
    refused(model, pmep.UnsupportedModelError, message, "map")
    assert fit_group(fit(model)).attrs["method"] == "ep"


def test_probabilities_and_scales_without_bounds():
    with pm.Model() as model:
        pm.Normal("y", tree(transition={"root": pm.Normal("root", -1, 1)}), 1.0, observed=OBSERVED)
    refused(
        model, pmep.InvalidDataError, r"'u'.*probability below low = -1.*index 1,.*between 0 and 1.*levels of the tree"
    )
    with pm.Model() as model:
        pm.Normal("y", tree(low=pm.Laplace.dist(0, pm.Normal("b", -1, 1))), 1.0, observed=OBSERVED)
    refused(model, pmep.InvalidDataError, r"'u'.*low b = -1.*positive")
    with pm.Model() as model:
        pm.Normal("y", tree(scaling=pm.Normal.dist(0, pm.Normal("s", -1, 1))), 1.0, observed=OBSERVED)
    refused(model, pmep.InvalidDataError, r"'u_scaling'.*-1.*positive")


@pytest.mark.filterwarnings("ignore:The result of dsb may be off")
@pytest.mark.parametrize("level", [0.0, 3.0])
def test_data_without_details(level):
    """Coefficients that are exactly zero draw scales to zero; neither their start nor a loop divides by these."""
    with pm.Model() as model:
        low, high = (pm.HalfNormal(name, np.array(size), shape=2) for name, size in (("low", 0.5), ("high", 2.0)))
        pair = {"low": pm.Normal.dist(0, low), "high": pm.StudentT.dist(nu=2.1, sigma=high)}
        pm.Normal("y", tree(wavelet="haar", **pair), np.array(0.3), observed=np.full(SHAPE, level))
    idata = pmep.fit(model=model, outer=4, draws=0, progressbar=False)
    np.testing.assert_allclose(idata["posterior_mean"]["u"], level, atol=1e-6)
    # Hardly more is left than the noise of the scaling coefficients, flat over four by four pixels.
    assert np.all((idata["posterior_sd"]["u"] > 0.999 * 0.3 / 4) & (idata["posterior_sd"]["u"] < 1.2 * 0.3 / 4))


def scales(low, high):
    """Return the scales of both states, to be learned."""
    return {name: pm.HalfNormal(name, np.array(size), shape=2) for name, size in (("low", low), ("high", high))}


@pytest.mark.filterwarnings("ignore:The result of dsb may be off")
@pytest.mark.parametrize("method", ["dsb", "ep"])
def test_laplace_states_of_data_without_details(method):
    """A state without weight has no part in the gradient, however steep its potential is; the status says so."""
    with pm.Model() as model:
        pair = {name: pm.Laplace.dist(0, b) for name, b in scales(0.5, 2.0).items()}
        pm.Normal("y", tree(wavelet="haar", **pair), np.array(0.3), observed=np.zeros(SHAPE))
    idata = pmep.fit(method, model=model, draws=0, progressbar=False)
    np.testing.assert_allclose(idata["posterior_mean"]["u"], 0.0, atol=1e-6)
    assert re.search("the states of 'u' ended as the same|optimum at a boundary", idata["fit"].attrs["status"])


@pytest.mark.filterwarnings("ignore:The result of dsb may be off")
def test_scales_that_are_given_stay_where_the_search_begins():
    """The others are fitted to the data all the same."""
    with pm.Model() as model:
        pair = {name: pm.Normal.dist(0, sd) for name, sd in scales(0.5, 2.0).items()}
        pm.Normal("y", tree(wavelet="haar", **pair), np.array(0.3), observed=OBSERVED)
    given = {"low": np.array([0.07, 0.03])}
    traces = [
        fit_group(pmep.fit("dsb", model=model, start=start, outer=1, draws=0, progressbar=False))
        for start in (given, None)
    ]
    first = [{name: fit[f"hyper_trace_{name}"].to_numpy()[0] for name in ("low", "high")} for fit in traces]
    np.testing.assert_allclose(first[0]["low"], given["low"])
    assert (np.abs(first[1]["low"] - given["low"]) > 1e-3).all()
    assert (first[0]["high"] != 2.0).all()


def one_scale():
    s = pm.HalfNormal("s", 1)
    return {"low": pm.Normal.dist(0, s), "high": pm.Normal.dist(0, s * 1.0)}


def one_number():
    return {"low": pm.Normal.dist(0, tau=4.0), "high": pm.Normal.dist(0, 0.5)}


@pytest.mark.parametrize("method", ["dsb", "ep"])
@pytest.mark.parametrize("pair", [one_scale, one_number])
def test_states_that_are_equal_at_all_hyperparameters(pair, method):
    with pm.Model() as model:
        pm.Normal("y", tree(**pair()), pm.HalfNormal("noise", 1), observed=OBSERVED)
    with pytest.raises(pmep.InvalidDataError, match="'u' are the same distribution at all hyperparameters"):
        pmep.fit(method, model=model, draws=0, progressbar=False)


@pytest.mark.parametrize("method", ["dsb", "ep", "map"])
def test_a_mask_that_leaves_nothing(method):
    with pm.Model() as model:
        u = tree(scaling=pm.Normal.dist(0, 1))
        pm.Normal("y", u[np.zeros(SHAPE, dtype=bool)], 1.0, observed=np.zeros(0))
    with pytest.raises(pmep.InvalidDataError, match="'y' has no observations; pass at least one"):
        pmep.fit(method, model=model, hyper="fixed", draws=0, progressbar=False)


def test_pixels_that_nothing_determines():
    """Flat scaling coefficients need observations; a prior on them is one of the cures."""
    seen = np.ones(SHAPE, dtype=bool)
    seen[:4, :4] = False

    def observe(u):
        pm.Normal("y", u[seen], 1.0, observed=OBSERVED[seen])

    message = "'y', 'u' do not determine all unknowns.*add a.*or scaling= of the WaveletTree"
    refused(model_of(observe, wavelet="haar"), pmep.InvalidDataError, message)
    fit(model_of(observe, wavelet="haar", scaling=pm.Normal.dist(0, 5)), tol=0.1)


def test_an_observed_tree():
    model = pm.Model()
    with model:
        tree(observed=OBSERVED)
    refused(model, pmep.UnsupportedModelError, "'u'.*WaveletTree.*depend on each other")


def test_a_tree_that_nothing_observes():
    model = model_of(lambda u: pm.Normal("y", pm.Normal("m"), 1.0, observed=OBSERVED))
    assert "ignored          u" in pmep.explain(model)


def test_observations_that_are_not_finite():
    wrong = np.where(np.arange(64).reshape(SHAPE) == 19, np.inf, OBSERVED)
    model = model_of(lambda u: pm.Normal("y", u, 1.0, observed=wrong))
    refused(model, pmep.InvalidDataError, r"'y' has the value inf at index \(2, 3\)")
