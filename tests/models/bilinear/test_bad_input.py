"""Bilinear models that cannot be, and what is said of them."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.models.bilinear.engine import variational_gaussian as vg
from pymc_ep.numerics.optimise.batched_lbfgs import Found

QUIET = {"progressbar": False, "random_seed": 1}


def shaped(left=(3, 2), right=(4, 2)):
    return pm.Normal("V", 0, 1, shape=left), pm.Normal("U", 0, 1, shape=right)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": [0, 3]}, "'y' has the row 3 at index 1.*less than 3"),
        ({"cols": [-1, 0]}, "'y' has the column -1 at index 0"),
        ({"rows": [0.0, 1.0]}, "row indices of type float64"),
        ({"rows": ["a", "b"]}, "'y': row has 'a', but its dim has no labels: positions are 0 to 2"),
        ({"rows": [0]}, "1 rows, 2 columns and 2 observations"),
        ({"cols": np.ma.array([1, 0], mask=[0, 1])}, "cols that are masked at index 1"),
        ({"observed": [1.0, 1.5]}, r"observation 1\.5 at index 1.*whole numbers"),
        ({"observed": [np.inf, 1.0]}, "observation inf at index 0"),
        ({"observed": [1, 2**53 + 2]}, r"observation 9007199254740994 at index 1.*at most 2\*\*53"),
        ({"observed": [1.0, np.nan]}, "'y' has no observation at index 1.*leave it out"),
        ({"observed": np.ma.array([1, 2], mask=[1, 0])}, "'y' has no observation at index 0"),
        ({"observed": 3}, r"observations of shape \(\)"),
        ({"offset": [0.0, 0.0, 0.0]}, r"offset of shape \(3,\); give one number, or one for every cell"),
        ({"offset": [[0.0], [0.0]]}, r"offset of shape \(2, 1\)"),
        ({"alpha": [1.0, 1.0, 1.0]}, r"alpha of shape \(3,\)"),
        ({"alpha": [1.0, -1.0]}, r"alpha -1\.0 at index 1; it must be positive"),
        ({"alpha": np.nan}, "alpha nan; it must be positive"),
        ({"observed": [None, 1]}, "'y' has the observation None at index 0, which is no number"),
        ({"observed": ["1", "many"]}, "'y' has the observation 1 at index 0, which is no number"),
        ({"offset": "log"}, "'y' has offset='log'; give one number"),
        ({"offset": 1j}, "'y' has offset=1j"),
        ({"alpha": "x"}, "'y' has alpha='x'"),
    ],
)
def test_cells_that_there_are_not(change, message):
    given = {"rows": [0, 1], "cols": [1, 0], "observed": [1, 2]} | change
    with pm.Model(), pytest.raises(pmep.InvalidDataError, match=message):
        pmep.BilinearPoisson("y", *shaped(), **given)


def test_matrices_of_other_widths():
    with pm.Model(), pytest.raises(pmep.InvalidDataError, match="'V' and 'U' have 2 and 3 columns"):
        pmep.BilinearPoisson("y", *shaped(right=(4, 3)), [0], [0], observed=[1])


def test_half_a_bit():
    with pm.Model(), pytest.raises(pmep.InvalidDataError, match=r"observation 0\.5 at index 1"):
        pmep.BilinearBernoulli("y", *shaped(), [0, 1], [0, 1], observed=[0.0, 0.5])


def two_cells(mean=0.0, sd=1.0, **options):
    pm.modelcontext(None).add_coord("item", range(3))
    V, U = pm.Normal("V", mean, sd, shape=(3, 2)), pm.Normal("U", 0, 1, shape=(4, 2))
    pmep.BilinearPoisson("y", V, U, [0, 1], [0, 1], observed=[1, 2], **options)


def short_bias():
    V, U = shaped()
    offset = pm.Normal("b", 0, 1, shape=2)[[0, 2]]
    pmep.BilinearPoisson("y", V, U, [0, 2], [1, 0], offset=offset, observed=[1, 2])


def exposure_of_zero():
    V, U = shaped()
    rate = pm.math.exp((V[[0, 1]] * U[[0, 1]]).sum(axis=-1))
    pm.Poisson("y", np.array([2.0, 0.0]) * rate, observed=[3, 0])


def every_cell(observed, exposure=1.0):
    V, U = shaped()
    pm.Poisson("y", exposure * pm.math.exp(V @ U.T), observed=observed)


def but_one(value, other=1.0):
    cells = np.full((3, 4), other)
    cells[1, 2] = value
    return cells


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: every_cell(np.ones((4, 3), int)), r"shape \(4, 3\), but .* are of shape \(3, 4\).*transpose the obs"),
        (lambda: every_cell(but_one(-1)), r"value -1 at index \(1, 2\)"),
        (lambda: every_cell(np.ones((3, 4), int), but_one(0.0)), r"the exposure 0 at index \(1, 2\).*leave it out"),
        (lambda: pmep.BilinearPoisson("y", *shaped(), [0, 1], [0, 1], observed=[1, -1]), "value -1 at index 1"),
        (
            lambda: pmep.BilinearPoisson("y", *shaped(), [0, 1], [0, 1], observed=[0, 1], truncated=True),
            "value 0 at index 0.*at least one",
        ),
        (
            lambda: pmep.BilinearBernoulli("y", *shaped(), [0, 1], [0, 1], observed=[0, 2]),
            "value 2 at index 1.*zeros and ones",
        ),
        (
            lambda: pmep.BilinearPoisson(
                "y", *shaped(), pm.Data("rows", [0, 7]), pm.Data("cols", [0, 1]), observed=[0, 2]
            ),
            "'y' has the row 7 at index 1, but 'V' has rows 0 to 2",
        ),
        (lambda: two_cells(offset=[0.0, np.nan]), "'y' has the offset nan at index 1, which must be finite"),
        (lambda: two_cells(sd=[1.0, 0.0]), r"'V' has the prior standard deviation 0\.0 at index \(0, 1\)"),
        (lambda: two_cells(sd=-2.0), r"'V' has the prior standard deviation -2\.0 at index \(0, 0\).*positive"),
        (lambda: two_cells(mean=np.inf), r"'V' has the prior mean inf at index \(0, 0\)"),
        (lambda: two_cells(offset=[0.5, 720.0]), r"'y' has the offset 720 at index 1.*pass the log of an exposure"),
        (lambda: two_cells(dims="item"), "'y' has 2 observations along axis 0, but its dim 'item' has 3 labels"),
        (short_bias, "takes 'b' out of range: index 2 is out of bounds.*as many entries as their matrix has rows"),
        (exposure_of_zero, "'y' has the exposure 0 at index 1.*leave it out"),
    ],
)
def test_observations_that_cannot_be(build, message):
    with pm.Model() as model:
        build()
    with pytest.raises(pmep.InvalidDataError, match=message):
        pmep.fit(model=model, draws=0, **QUIET)


def other_likelihood():
    V, U = shaped()
    pm.Exponential("y", pm.math.exp((V[[0, 1]] * U[[0, 1]]).sum(axis=-1)), observed=[1.0, 2.0])


def used_elsewhere():
    V, U = shaped()
    pm.Poisson("y", pm.math.exp((V[[0, 1]] * U[[0, 1]]).sum(axis=-1) + V[[0, 1], 0]), observed=[1, 2])


def second_observed():
    pmep.BilinearPoisson("y", *shaped(), [0, 1], [0, 1], observed=[1, 2])
    pm.Normal("z", pm.Normal("m"), 1, observed=0.5)


def half_normal():
    V, U = pm.Normal("V", 0, 1, shape=(3, 2)), pm.HalfNormal("U", 1, shape=(4, 2))
    pmep.BilinearPoisson("y", V, U, [0, 1], [1, 2], observed=[1, 2])


def itself():
    pmep.BilinearPoisson("y", *shaped()[:1] * 2, [0, 1], [1, 2], observed=[1, 2])


def imputed():
    V, U = shaped()
    rate = pm.math.exp((V[[0, 1]] * U[[0, 1]]).sum(axis=-1))
    with pytest.warns(pm.exceptions.ImputationWarning):
        pm.Poisson("y", rate, observed=np.ma.array([1, 2], mask=[0, 1]))


def not_centred():
    V, U = shaped()
    b = pm.Normal("z", 0, 1, shape=3) * pm.HalfNormal("sb", 1)
    pmep.BilinearPoisson("y", V, U, [0, 1], [1, 2], offset=b[[0, 1]], observed=[1, 2])


def signed():
    V, U = shaped()
    pmep.BilinearPoisson("y", V, U, [0, 1], [1, 2], offset=-pm.Normal("b", 0, 1, shape=4)[[1, 2]], observed=[1, 2])


def halved():
    V, U = shaped()
    pm.Poisson("y", pm.math.exp(V @ U.T + pm.Normal("b", 0, 1, shape=3)[:, None] / 2), observed=np.ones((3, 4), int))


def made():
    V = pm.Deterministic("V", pm.Normal("z", 0, 1, shape=(3, 2)) * pm.HalfNormal("s", 1))
    pmep.BilinearPoisson("y", V, pm.Normal("U", shape=(4, 2)), [0, 1], [1, 2], observed=[1, 2])


def imputed_cells():
    with pytest.warns(pm.exceptions.ImputationWarning):
        every_cell(np.ma.masked_equal(but_one(3), 3))


def other_truncation():
    V, U = shaped()
    rate = pm.math.exp((V[[0, 1]] * U[[0, 1]]).sum(axis=-1))
    pm.Truncated("y", pm.Poisson.dist(rate), lower=2, observed=[3, 2])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (other_likelihood, "'y' has a bilinear predictor.*poisson, negative_binomial, logit, softplus_poisson, normal"),
        (used_elsewhere, "'V' enters the model elsewhere"),
        (second_observed, r"no other observed variable \('z'\)"),
        (half_normal, r"prior of 'U' is no pm\.Normal.*latent=\['V'\]"),
        (itself, "rows of 'V' with rows of 'V' itself"),
        (imputed, "'y' has missing observations, which PyMC draws as 'y_unobserved'.*leave these out"),
        (made, r"rows that are made of 'z', by a factor or a sum.*Write mean and scale into the prior"),
        (not_centred, r"'z' is a bias of the rows of 'V' of which.*Write its mean and scale into its prior"),
        (signed, r"'b' is a bias of the rows of 'U' of which a sign"),
        (halved, r"'b' is a bias of the rows of 'V' of which a sign, a factor.*or hold it at its mode by latent="),
        (imputed_cells, r"'y' has missing observations.*leave these out, as \(V @ U\.T\)\[seen\]"),
        (other_truncation, "only zeros can be cut off: give it lower=1"),
    ],
)
def test_models_that_do_not_fit(build, message):
    with pm.Model() as model:
        build()
    with pytest.raises(pmep.UnsupportedModelError, match=message):
        pmep.fit(model=model, draws=0, **QUIET)


def test_that_what_is_learned_has_no_spread_is_said():
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, pm.HalfNormal("s", 1), shape=(3, 2)), pm.Normal("U", 0, 1, shape=(4, 2))
        pmep.BilinearPoisson("y", V, U, [0, 1], [1, 2], observed=[1, 2])
    for hyper, said in (("optimize", True), ("fixed", False)):
        fit = group(pmep.fit(model=model, hyper=hyper, draws=0, **QUIET), "fit")
        assert ("the hyperparameters are at their mode, without a spread" in fit.attrs["status"]) == said


@pytest.mark.parametrize("method", ["vg", "vbmf"])
def test_hyperparameters_that_are_scales_of_others_have_no_joint_mode(method):
    """Their density rises without an end as the scale goes to zero, and did so down to 1e-162."""
    X = np.random.default_rng(0).standard_normal((2, 3))
    with pm.Model() as model:
        V, U = shaped()
        slopes = pm.Normal("slopes", 0, pm.HalfNormal("t", 1), shape=3)
        offset = pm.math.dot(X, slopes)
        pmep.BilinearPoisson("y", V, U, [0, 1], [1, 2], offset=offset, observed=[1, 2], link="softplus")
    with pytest.raises(ValueError, match=r"'slopes' is held at its mode, and its scale 't' is to be learned"):
        pmep.fit(method, model=model, draws=0, **QUIET)
    fit = group(pmep.fit(method, model=model, draws=0, hyper="fixed", start={"t": 0.5}, **QUIET), "fit")
    assert float(fit["hyper_mode_t"]) == 0.5
    assert "at their mode" not in fit.attrs["status"]


@pytest.mark.parametrize(("sd", "same"), [(17, 17.0), (100, 100.0)])
def test_whole_numbers_are_scales_as_others_are(sd, same):
    """PyTensor takes small ones for bytes, whose squares overflow."""
    evidence = []
    for scale in (sd, same):
        with pm.Model() as model:
            two_cells(sd=scale, offset=pm.Normal("b", 0, scale, shape=3)[[0, 1]])
        evidence.append(float(group(pmep.fit(model=model, draws=0, **QUIET), "fit")["log_evidence"]))
    assert evidence[0] == evidence[1]


@pytest.mark.filterwarnings("ignore::pymc_ep.ConvergenceWarning")
@pytest.mark.parametrize("seed", [0, 1])
def test_large_counts_do_not_end_the_ascent_where_its_gradient_is_steep(seed):
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(8, size=30), rng.integers(6, size=30)
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, 1000**0.5, shape=(8, 2)), pm.Normal("U", 0, 1, shape=(6, 2))
        y = 1000 * (1 + rng.poisson(1.5, 30))
        pmep.BilinearPoisson("y", V, U, rows, cols, link="softplus", observed=y)
    fit = group(pmep.fit("vg", model=model, draws=0, seed=seed, **QUIET), "fit")
    # It ended at -129579 after seven steps from one of these seeds.
    assert float(fit["log_evidence"]) > -10_000
    assert (np.diff(fit["objective"]) >= 0).all()


def test_an_ascent_that_cannot_move_says_so(monkeypatch):
    """Neither all at once nor row by row, although the gradient is that of a start that is far off."""

    def nowhere(evaluate, start, scale, **options):
        points = start if isinstance(start, np.ndarray) else start.points
        return Found(points, *evaluate(np.zeros(1, dtype=int), points), ())

    monkeypatch.setattr(vg, "maximise_many", nowhere)
    monkeypatch.setattr(vg, "improved_rows", lambda block, rows, **options: rows)
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, 1, shape=(3, 2)), pm.Normal("U", 0, 1, shape=(4, 2))
        pmep.BilinearPoisson("y", V, U, [0, 1, 2], [0, 1, 2], observed=[20, 1, 40])
    with pytest.warns(pmep.ConvergenceWarning, match="none raises the bound, although its gradient promises"):
        fit = group(pmep.fit("vg", model=model, draws=0, **QUIET), "fit")
    assert not fit["converged"]


def test_few_steps_give_covariances_that_are_asked_for():
    with pm.Model() as model:
        two_cells()
    with pytest.warns(pmep.ConvergenceWarning):
        idata = pmep.fit("vg", model=model, draws=0, covariance="full", max_iter=2, **QUIET)
    assert group(idata, "fit_state")["left_factor"].shape == (3, 2, 2)
