"""`WaveletTree` against enumeration of all states: its density, its draws, and its manners in PyMC."""

import itertools
import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import pywt
import scipy.special
import scipy.stats

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.modes import numpy_mode

# PyWavelets' own transform, which the references take, finds these images small.
pytestmark = pytest.mark.filterwarnings("ignore:Level value of")

ROOT, CHILD = 0.3, np.array([[0.15, 0.8]])
SCALES = np.array([[0.3, 0.7], [1.1, 2.5]])
"""Of the low and the high state, by level."""
NU = 3.5


def laplace(x, b):
    return scipy.stats.laplace.logpdf(x, scale=b)


def normal(x, s):
    return scipy.stats.norm.logpdf(x, scale=s)


def student(x, s):
    return scipy.stats.t.logpdf(x, NU, scale=s)


PAIRS = {
    "laplace": ((pm.Laplace.dist, laplace), (pm.Laplace.dist, laplace)),
    "normal and student": (
        (pm.Normal.dist, normal),
        (lambda location, s: pm.StudentT.dist(nu=NU, mu=location, sigma=s), student),
    ),
}
SCALINGS = {
    "flat": lambda: (None, lambda s: np.zeros_like(s)),
    "one": lambda: (pm.Normal.dist(0, 4.0), lambda s: normal(s, 4.0)),
    "pair": lambda: (
        (pm.Normal.dist(0, 1.5), pm.Laplace.dist(0, 6.0)),
        lambda s: np.logaddexp(np.log(0.6) + normal(s, 1.5), np.log(0.4) + laplace(s, 6.0)),
    ),
}


def tree(pair, levels, scales=SCALES, shape=(4, 4), scaling=None, wavelet="db2", transition=None):
    (low, _), (high, _) = PAIRS[pair]
    known = {"root": ROOT} | ({"child": np.tile(CHILD, (levels - 1, 1))} if levels > 1 else {})
    known |= {"scaling": 0.4} if isinstance(scaling, tuple) else {}
    low, high = (kind(0.0, scales[i][:levels]) for i, kind in enumerate((low, high)))
    return pmep.WaveletTree.dist(
        shape=shape, wavelet=wavelet, levels=levels, low=low, high=high, scaling=scaling, transition=transition or known
    )


def log_trees(orientation, log_densities, scales, root=ROOT, child=CHILD):
    """log density of the trees of one orientation, by all states of each: images from the coarsest to the finest."""
    total = 0.0
    for row, column in itertools.product(*map(range, orientation[0].shape)):
        blocks = [
            image[row << k : (row + 1) << k, column << k : (column + 1) << k] for k, image in enumerate(orientation)
        ]
        nodes = [(k, r, c) for k, block in enumerate(blocks) for r, c in itertools.product(*map(range, block.shape))]
        terms = []
        for states in itertools.product([0, 1], repeat=len(nodes)):
            state = dict(zip(nodes, states))
            log_weight = 0.0
            for (k, r, c), own in state.items():
                level = len(blocks) - 1 - k
                high = root if k == 0 else child[level, state[k - 1, r // 2, c // 2]]
                log_weight += np.log(high if own else 1.0 - high)
                log_weight += log_densities[own](blocks[k][r, c], scales[own][level])
            terms.append(log_weight)
        total += scipy.special.logsumexp(terms)
    return total


def enumerated(image, pair, levels, log_scaling, scales=SCALES, wavelet="db2"):
    """log density by PyWavelets' own transform, `pywt.wavedec2`."""
    smooth, *details = pywt.wavedec2(image, wavelet, mode="periodization", level=levels)
    densities = [density for _, density in PAIRS[pair]]
    return log_scaling(smooth).sum() + sum(
        log_trees([images[which] for images in details], densities, scales) for which in range(3)
    )


def compiled(inputs, outputs):
    return pytensor.function(inputs, outputs, mode=numpy_mode())


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("pair", PAIRS)
def test_density_against_enumeration(pair, levels, scaling):
    given, log_scaling = SCALINGS[scaling]()
    image = 2.0 * np.random.default_rng(levels).standard_t(3, (4, 4))
    x = pt.dmatrix("x")
    logp = pm.logp(tree(pair, levels, scaling=given), x)
    assert logp.type.ndim == 0
    expected = enumerated(image, pair, levels, log_scaling)
    np.testing.assert_allclose(compiled([x], logp)(image), expected, rtol=1e-11)


def test_density_on_a_rectangle_in_another_wavelet():
    image = np.random.default_rng(5).standard_t(3, (4, 8))
    x = pt.dmatrix("x")
    logp = compiled([x], pm.logp(tree("laplace", 2, shape=(4, 8), wavelet="sym4"), x))
    expected = enumerated(image, "laplace", 2, np.zeros_like, wavelet="sym4")
    np.testing.assert_allclose(logp(image), expected, rtol=1e-11)


@pytest.mark.parametrize("pair", PAIRS)
def test_gradients_against_differences(pair):
    """In the image, the scales and the probabilities."""
    x, low, high = pt.dmatrix("x"), pt.dvector("low"), pt.dvector("high")
    root, child = pt.dscalar("root"), pt.dmatrix("child")
    inputs = [x, low, high, root, child]
    rv = tree(pair, 2, scales=[low, high], transition={"root": root, "child": child})
    logp = pm.logp(rv, x)
    function = compiled(inputs, [logp, *pytensor.grad(logp, inputs)])
    at = [np.random.default_rng(8).standard_t(3, (4, 4)), *SCALES, np.array(ROOT), CHILD]
    value, *gradients = function(*at)
    expected = enumerated(at[0], pair, 2, np.zeros_like)
    np.testing.assert_allclose(value, expected, rtol=1e-11)
    for i, gradient in enumerate(gradients):
        for place in np.ndindex(gradient.shape):
            step = np.zeros(gradient.shape)
            step[place] = 1e-6
            there, back = (function(*at[:i], at[i] + sign * step, *at[i + 1 :])[0] for sign in (1, -1))
            np.testing.assert_allclose(gradient[place], (there - back) / 2e-6, rtol=1e-6, atol=1e-7)


def test_density_far_out_is_finite():
    """States of which one has all the weight: nothing overflows, in the density or its gradient."""
    x = pt.dmatrix("x")
    logp = pm.logp(tree("normal and student", 2, scaling=pm.Normal.dist(0, 4.0)), x)
    function = compiled([x], [logp, pt.grad(logp, x)])
    for size in (0.0, 1e-8, 1e4, 1e8):
        value, gradient = function(size * np.random.default_rng(1).normal(size=(4, 4)))
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("scaling", ["one", "pair"])
def test_density_integrates_to_one_over_four_pixels(scaling):
    """One level makes p a product over coefficients: the four integrals along lines multiply to p^3 if each is one."""
    given, _ = SCALINGS[scaling]()
    x = pt.dmatrix("x")
    logp = compiled([x], pm.logp(tree("laplace", 1, shape=(2, 2), scaling=given, wavelet="haar"), x))
    basis = np.array([[1, 1, 1, 1], [1, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]]).reshape(4, 2, 2) / 2.0
    start = sum(c * b for c, b in zip((0.7, -0.4, 0.2, 1.3), basis))
    nodes, weights = np.polynomial.legendre.leggauss(24)
    integrals = []
    for direction in basis:
        # The kink of Laplace potentials is where the coefficient is zero; s = sinh(t) / 2 takes in the tails.
        origin = start - (start * direction).sum() * direction
        t = np.concatenate([(edge + (nodes + 1) / 2) * 1.5 for edge in range(-4, 4)])
        mass = np.tile(weights * 0.75, 8) * np.cosh(t) / 2
        integrals.append(mass @ np.exp([logp(origin + s * direction) for s in np.sinh(t) / 2]))
    np.testing.assert_allclose(np.prod(integrals), np.exp(3 * logp(start)), rtol=1e-6)


def test_density_integrates_to_one_over_trees():
    """By importance sampling: states drawn as if independent, coefficients given these; 4.5 standard errors."""
    scales, child = np.array([[1.0, 1.0], [2.0, 2.0]]), np.array([[0.35, 0.65]])
    x = pt.dmatrix("x")
    rv = tree(
        "laplace", 2, scales, scaling=pm.Laplace.dist(0, 1.0), wavelet="haar", transition={"root": 0.5, "child": child}
    )
    logp = compiled([x], pm.logp(rv, x))
    rng = np.random.default_rng(4)
    draws = rng.laplace(size=(600, 16)) * np.where(rng.random((600, 16)) < 0.5, 1.0, 2.0)
    draws[:, 0] = rng.laplace(size=600)
    log_q = np.logaddexp(laplace(draws[:, 1:], 1.0), laplace(draws[:, 1:], 2.0)) - np.log(2.0)
    log_q = log_q.sum(axis=1) + laplace(draws[:, 0], 1.0)
    ratios = []
    for row, proposal in zip(draws, log_q):
        coarse, fine = row[1:4].reshape(3, 1, 1), row[4:].reshape(3, 2, 2)
        image = pywt.waverec2([row[:1, None], tuple(coarse), tuple(fine)], "haar", mode="periodization")
        ratios.append(np.exp(logp(image) - proposal))
    error = np.std(ratios) / np.sqrt(len(ratios))
    assert error < 0.05
    assert abs(np.mean(ratios) - 1.0) < 4.5 * error


# Draws


@pytest.fixture(scope="module")
def drawn():
    """Coefficients of 300 draws of two normal states, scaling ones first, then by level from the coarsest."""
    rv = pmep.WaveletTree.dist(
        shape=(8, 16),
        wavelet="db2",
        levels=2,
        low=pm.Normal.dist(0, SCALES[0]),
        high=pm.Normal.dist(0, SCALES[1]),
        scaling=pm.Normal.dist(0, 4.0),
        transition={"root": ROOT, "child": CHILD},
    )
    images = pm.draw(rv, 300, random_seed=3, mode=numpy_mode())
    assert images.shape == (300, 8, 16)
    smooth, *details = pywt.wavedec2(images, "db2", mode="periodization", level=2)
    return smooth, *(np.stack(images, axis=1) for images in details)


def assert_mean(values, exact):
    """The mean over draws, of which each is a mean over an image, within 4.5 standard errors."""
    each = values.reshape(len(values), -1).mean(axis=1)
    assert abs(each.mean() - exact) < 4.5 * each.std() / np.sqrt(len(each))


def test_draws_have_the_variances_of_their_levels(drawn):
    smooth, coarse, fine = drawn
    assert_mean(smooth**2, 16.0)
    share = np.array([CHILD[0, 0] + ROOT * (CHILD[0, 1] - CHILD[0, 0]), ROOT])  # finest first
    variances = SCALES[0] ** 2 + share * (SCALES[1] ** 2 - SCALES[0] ** 2)
    assert_mean(fine**2, variances[0])
    assert_mean(coarse**2, variances[1])
    # Fourth moments tell a mixture from one Gaussian of that variance.
    assert_mean(coarse**4, 3 * (SCALES[0, 1] ** 4 + ROOT * (SCALES[1, 1] ** 4 - SCALES[0, 1] ** 4)))


def test_large_coefficients_have_large_children(drawn):
    _, coarse, fine = drawn
    parents = coarse.repeat(2, axis=-2).repeat(2, axis=-1)
    squares = SCALES**2
    given = squares[0, 0] + CHILD[0] * (squares[1, 0] - squares[0, 0])  # of a child, by the state of its parent
    exact = (1 - ROOT) * squares[0, 1] * given[0] + ROOT * squares[1, 1] * given[1]
    assert_mean((parents * fine) ** 2, exact)
    # It is far from what independent levels would have, and signs are independent.
    independent = squares[0, 1] + ROOT * (squares[1, 1] - squares[0, 1])
    independent *= (1 - ROOT) * given[0] + ROOT * given[1]
    assert exact > 1.3 * independent
    assert_mean(parents * fine, 0.0)
    strangers = np.roll(parents, 2, axis=-1)
    assert_mean((strangers * fine) ** 2, independent)


def test_draws_differ_and_follow_their_seed():
    rv = tree("laplace", 2, scaling=(pm.Normal.dist(0, 1), pm.Laplace.dist(0, 6)))
    once, again = (pm.draw(rv, 2, random_seed=1, mode=numpy_mode()) for _ in range(2))
    np.testing.assert_array_equal(once, again)
    assert not np.allclose(once[0], once[1])


def test_default_mode_draws():
    """Student t and the mixture of scaling coefficients, in whatever the stack compiles to; warnings are errors."""
    rv = tree("normal and student", 2, scaling=(pm.Normal.dist(0, 1), pm.Laplace.dist(0, 6)))
    assert np.isfinite(pm.draw(rv, 3, random_seed=1)).all()


@pytest.mark.filterwarnings("ignore:Numba will use object mode to run flat_scaling")
def test_flat_scaling_coefficients_cannot_be_drawn():
    with pytest.raises(NotImplementedError, match=r"scaling coefficients.*flat.*scaling=pm\.Normal\.dist"):
        pm.draw(tree("laplace", 1))


# In a model


def model_of(scaling=None, **options):
    rng = np.random.default_rng(2)
    observed = np.pad(np.full((4, 4), 3.0), 2) + 0.3 * rng.normal(size=(8, 8))
    with pm.Model(coords={"row": range(8), "column": range(8), "level": range(2)}) as model:
        low, high = pm.HalfNormal("low", 0.5, dims="level"), pm.HalfNormal("high", 2, dims="level")
        pmep.WaveletTree(
            "u",
            levels=2,
            low=pm.Normal.dist(0, low),
            high=pm.StudentT.dist(nu=2.1, sigma=high),
            scaling=scaling,
            dims=("row", "column"),
            **options,
        )
        pm.Normal("y", model["u"], 0.3, observed=observed, dims=("row", "column"))
    return model


@pytest.fixture(scope="module")
def model():
    return model_of(pm.Normal.dist(0, 5))


def test_variables_dims_and_initial_values(model):
    assert [v.name for v in model.free_RVs] == ["low", "high", "u_root", "u_child", "u"]
    assert model.named_vars_to_dims["u"] == ("row", "column")
    assert model["u"].type.shape == (8, 8)
    assert model["u_root"].type.shape == ()
    assert model["u_child"].type.shape == (1, 2)
    point = model.initial_point()
    np.testing.assert_array_equal(point["u"], np.zeros((8, 8)))
    np.testing.assert_allclose(scipy.special.expit(point["u_child_logodds__"]), [[0.1, 0.9]])
    np.testing.assert_allclose(scipy.special.expit(point["u_root_logodds__"]), 0.5)
    with pm.Model() as other:
        both = pm.Normal.dist(0, 1), pm.Laplace.dist(0, 4)
        pmep.WaveletTree(
            "v", shape=(2, 2), levels=1, low=both[0], high=both[1], wavelet="haar", scaling=both, initval=np.eye(2)
        )
    assert [v.name for v in other.free_RVs] == ["v_root", "v_scaling", "v"]
    np.testing.assert_array_equal(other.initial_point()["v"], np.eye(2))


def test_probabilities_that_are_given_are_no_variables():
    with pm.Model() as model:
        share = pm.Beta("share", 1, 9)
        options = {"shape": (8, 8), "low": pm.Laplace.dist(0, 1), "high": pm.Laplace.dist(0, 4)}
        pmep.WaveletTree("u", levels=2, transition={"root": share, "child": [[0.1, 0.9]]}, **options)
        pmep.WaveletTree("v", levels=np.int64(2), transition={"child": [[0.1, 0.9]]}, **options)
    assert [v.name for v in model.free_RVs] == ["share", "u", "v_root", "v"]


def test_log_density_of_the_model(model):
    image = np.random.default_rng(3).normal(size=(8, 8))
    low, high, root, child = np.array([0.2, 0.5]), np.array([1.5, 3.0]), 0.25, np.array([[0.2, 0.7]])
    logit = scipy.special.logit
    point = {
        "low_log__": np.log(low),
        "high_log__": np.log(high),
        "u_root_logodds__": logit(root),
        "u_child_logodds__": logit(child),
        "u": image,
    }
    found = model.compile_logp(mode=numpy_mode())(point)
    smooth, *details = pywt.wavedec2(image, "db2", mode="periodization", level=2)
    densities = normal, lambda x, s: scipy.stats.t.logpdf(x, 2.1, scale=s)
    probabilities = np.append(child, root)
    expected = (
        scipy.stats.halfnorm.logpdf(low, scale=0.5).sum()
        + scipy.stats.halfnorm.logpdf(high, scale=2).sum()
        + np.log(low).sum()  # these and the last of the transforms
        + np.log(high).sum()
        + scipy.stats.beta.logpdf(probabilities, 2, 2).sum()
        + (np.log(probabilities) + np.log1p(-probabilities)).sum()
        + normal(smooth, 5.0).sum()
        + sum(log_trees([images[o] for images in details], densities, [low, high], root, child) for o in range(3))
        + normal(model.rvs_to_values[model["y"]].eval() - image, 0.3).sum()
    )
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_prior_draws_of_the_model(model):
    with model:
        prior = group(pm.sample_prior_predictive(20, random_seed=1, compile_kwargs={"mode": numpy_mode()}), "prior")
    assert prior["u"].dims == ("chain", "draw", "row", "column")
    assert np.isfinite(prior["u"]).all()
    assert prior["u_child"].shape == (1, 20, 1, 2)
    # Each draw has scales of its own.
    smooth, *_ = pywt.wavedec2(prior["u"].to_numpy()[0], "db2", mode="periodization", level=2)
    np.testing.assert_allclose(np.mean(smooth**2), 25.0, rtol=4.5 * np.sqrt(2 / smooth.size))


def test_nuts_starts_and_moves(model):
    """Compiled by default, on one stack by Numba: warnings are errors, so nothing falls back to interpreted code."""
    with model:
        idata = pm.sample(
            draws=5, tune=5, chains=1, cores=1, progressbar=False, random_seed=1, compute_convergence_checks=False
        )
    posterior = group(idata, "posterior")
    assert posterior["u"].dims == ("chain", "draw", "row", "column")
    for name in ("u", "u_root", "u_child", "low"):
        assert np.isfinite(posterior[name]).all()
        assert np.ptp(posterior[name].to_numpy(), axis=1).min() > 0


def test_pickles(model):
    point = model.initial_point() | {"u": np.random.default_rng(3).normal(size=(8, 8))}
    expected = model.compile_logp(mode=numpy_mode())(point)
    copy = pickle.loads(cloudpickle.dumps(model))  # PyMC's models do not go through pickle alone
    np.testing.assert_allclose(copy.compile_logp(mode=numpy_mode())(point), expected, rtol=1e-13)
