"""Which rows the biases of a bilinear model belong to."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_ep as pmep
from pymc_ep.forms import compiled_form

SAME = np.array([0, 1, 0])


def sides(biases, *, shape=(2, 4), shared=False):
    """Return the names of the left and of the right bias of a matrix whose cells have equal rows and columns.

    Biases are pairs of a length and of the side whose index they take, where the indices are shared variables.
    """
    with pm.Model() as model:
        V, U = (pm.Normal(name, shape=(n, 1)) for name, n in zip("VU", shape))
        index = [pm.Data(name, SAME) if shared else SAME for name in ("rows", "cols")]
        terms = [pm.Normal(f"b{k}", shape=n)[index[side]] for k, (n, side) in enumerate(biases)]
        pmep.BilinearPoisson("y", V, U, *index, offset=sum(terms) + 0.5, observed=[1, 0, 2])
    form = compiled_form(model, None).form
    assert all(f"b{k}" in {*form.latent_names, *form.hyper_names} for k in range(len(biases)))
    return tuple(None if bias is None else bias.name for bias in form.biases)


@pytest.mark.parametrize(
    ("biases", "expected"),
    [
        ([(4, 1)], (None, "b0")),
        ([(2, 0)], ("b0", None)),
        ([(4, 1), (2, 0)], ("b1", "b0")),
        # No matrix has as many rows, or the one that has them has a bias already: a hyperparameter.
        ([(3, 0)], (None, None)),
        ([(4, 1), (4, 1)], (None, "b0")),
    ],
    ids=["right", "left", "both", "neither", "twice"],
)
def test_where_cells_have_equal_rows_and_columns_lengths_decide(biases, expected):
    assert sides(biases) == expected


def test_where_lengths_are_equal_as_well_the_variable_of_the_index_decides():
    assert sides([(2, 1)], shape=(2, 2), shared=True) == (None, "b0")
    assert sides([(2, 0)], shape=(2, 2), shared=True) == ("b0", None)
    # As constants they are one model.
    assert sides([(2, 1)], shape=(2, 2)) == ("b0", None)
    assert sides([(2, 1), (2, 0)], shape=(2, 2)) == ("b0", "b1")


R, K, PLACES = np.array([0, 1, 0, 2]), np.array([0, 1, 2, 1]), np.array([1, 0, 3, 2])


def model_of(predictor, likelihood=lambda f: pm.Poisson("y", pm.math.exp(f), observed=[1, 0, 2, 1])):
    """Return a model of inner products and a level; both start where a factor of one changes nothing."""
    with pm.Model() as model:
        V, U = (pm.Normal(name, shape=(3, 2)) for name in "VU")
        likelihood(predictor((V[R] * U[K]).sum(-1), pm.Normal("mu", 1, 1)))
    return model


@pytest.mark.parametrize(
    "predictor",
    [
        lambda p, mu: 0.5 * p + mu,
        lambda p, mu: mu - p,
        lambda p, mu: mu * p,
        lambda p, mu: p / 2 + mu,
        lambda p, mu: (p + mu) + p,
        lambda p, mu: p + p,
        lambda p, mu: p[PLACES] + mu,
        lambda p, mu: (p + mu)[PLACES],
        lambda p, mu: (p + mu)[::-1],
        lambda p, mu: (p + mu) * np.array([1.0, 1.0, 1.0, 2.0]),
    ],
    ids=["half", "minus", "learned", "over", "twice", "both", "places", "reordered", "reversed", "one"],
)
def test_what_else_is_done_to_inner_products_is_refused(predictor):
    with pytest.raises(pmep.UnsupportedModelError, match="'V' and 'U', once, plus offsets"):
        compiled_form(model_of(predictor), None)


def test_a_factor_of_the_logit_is_refused():
    def bits(f):
        pm.Bernoulli("y", logit_p=f / 2, observed=[1, 0, 1, 1])

    with pytest.raises(pmep.UnsupportedModelError, match="Write a factor or sign into the prior of 'V'"):
        compiled_form(model_of(lambda p, mu: p, bits), None)


def test_exposures_and_levels_are_offsets():
    model = model_of(
        lambda p, mu: p + mu,
        lambda f: pm.Poisson("y", np.array([1.0, 2.0, 3.0, 4.0]) * pm.math.exp(f), observed=[1, 0, 2, 1]),
    )
    form = compiled_form(model, None).form
    assert form.cells.link == "exp"
    assert form.latent_names == ("V", "U")


def test_a_bias_of_rows_and_of_columns_is_refused():
    """It is one vector, not two independent ones."""
    with pm.Model() as model:
        V, U = (pm.Normal(name, shape=(3, 2)) for name in "VU")
        b = pm.Normal("b", shape=3)
        pm.Poisson("y", pm.math.exp((V[R] * U[K]).sum(-1) + b[R] + b[K]), observed=[1, 0, 2, 1])
    with pytest.raises(pmep.UnsupportedModelError, match="'b' enters the model elsewhere"):
        compiled_form(model, None)


MASK = np.array([[True, False, True], [False, True, False], [True, True, False]])
ROWS, COLS = MASK.nonzero()
SPELLINGS = {
    "sum": lambda V, U, b: (V[ROWS] * U[COLS]).sum(-1) + b[COLS],
    "at": lambda V, U, b: (V @ U.T)[ROWS, COLS] + b[COLS],
    "mask": lambda V, U, b: (V @ U.T)[MASK] + b[COLS],
    "dot": lambda V, U, b: pm.math.dot(V, U.T)[pm.Data("rows", ROWS), COLS] + b[COLS],
    "transpose": lambda V, U, b: pt.tensordot(V, pt.transpose(U), 1)[ROWS, COLS] + b[COLS],
    "sum at": lambda V, U, b: (V @ U.T + b + 1.0)[ROWS, COLS],
    "sum in a mask": lambda V, U, b: (V @ U.T + b[None] + np.ones((3, 1)))[pm.Data("mask", MASK)],
    "deterministics": lambda V, U, b: pm.Deterministic("p", pm.Deterministic("q", V @ U.T) + b)[MASK],
    "deterministic": lambda V, U, b: pm.Deterministic("q", (V[ROWS] * U[COLS]).sum(-1)) + b[COLS],
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings(spelling):
    """Of the way PyMC's own page on matrix factorization goes as well: a whole product, and the cells that are seen."""
    with pm.Model() as model:
        V, U = (pm.Normal(name, shape=(3, 2)) for name in "VU")
        b = pm.Normal("b", shape=3)
        pm.Normal("y", SPELLINGS[spelling](V, U, b), 1, observed=np.arange(5.0))
    form = compiled_form(model, None).form
    assert [matrix.name for matrix in form.matrices] == ["V", "U"]
    cells = [pytensor.function([], part)() for part in model.replace_rvs_by_values([form.cells.rows, form.cells.cols])]
    np.testing.assert_array_equal(cells, [ROWS, COLS])
    assert form.biases[0] is None
    assert form.biases[1].name == "b"


COUNTS = np.array([[1, 0, 4], [2, 7, 0], [0, 3, 1], [5, 1, 2]])
CELLS = tuple(np.indices(COUNTS.shape).reshape(2, -1))
WHOLE = {
    "counts": lambda f, y: pm.Poisson("y", pm.math.exp(f), observed=y),
    "bits": lambda f, y: pm.Bernoulli("y", logit_p=f, observed=(y > 1).astype(int)),
    "numbers": lambda f, y: pm.Normal("y", f, pm.HalfNormal("noise", 1), observed=np.sqrt(y)),
}


@pytest.mark.parametrize("likelihood", WHOLE)
def test_a_whole_product_is_all_its_cells(likelihood):
    def found(whole):
        with pm.Model() as model:
            V, U = (pm.Normal(name, shape=(n, 2)) for name, n in zip("VU", COUNTS.shape))
            b, c = (pm.Normal(name, shape=n) for name, n in zip("bc", COUNTS.shape))
            if whole:
                WHOLE[likelihood](V @ U.T + b[:, None] + c + pm.Normal("mu", 0, 1), COUNTS)
            else:
                rows, cols = CELLS
                f = (V[rows] * U[cols]).sum(-1) + b[rows] + c[cols] + pm.Normal("mu", 0, 1)
                WHOLE[likelihood](f, COUNTS.ravel())
        idata = pmep.fit("vg", model=model, draws=5, chains=1, log_likelihood=True, random_seed=0, progressbar=False)
        fit = idata["fit"]
        return (
            {
                "log_evidence": fit["log_evidence"].to_numpy(),
                "hyper_mode_mu": fit["hyper_mode_mu"].to_numpy(),
                "sd of b": idata["posterior_sd"]["b"].to_numpy(),
                "mean of c": idata["posterior_mean"]["c"].to_numpy(),
            },
            [fit["y_predictor_sd"].to_numpy(), idata["log_likelihood"]["y"].to_numpy()[0]],
        )

    (same, of_matrix), (expected, of_vector) = found(True), found(False)
    for name, value in expected.items():
        np.testing.assert_allclose(same[name], value, rtol=1e-10, atol=1e-12, err_msg=name)
    for part, vector in zip(of_matrix, of_vector):
        assert part.shape == (*vector.shape[:-1], *COUNTS.shape)
        np.testing.assert_allclose(part.reshape(vector.shape), vector, rtol=1e-10)


def test_rates_may_be_selected_after_the_link():
    with pm.Model() as model:
        V, U = (pm.Normal(name, shape=(3, 2)) for name in "VU")
        pm.Poisson("y", pm.math.exp(V @ U.T + pm.Normal("b", shape=3)[:, None])[ROWS, COLS], observed=np.arange(5))
    form = compiled_form(model, None).form
    assert form.cells.link == "exp"
    assert form.biases[0].name == "b"


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda p: pm.Normal("y", np.ones((2, 3)) @ p, 1, observed=np.ones((2, 3))), r"with latent=\[\.\.\.\]"),
        (lambda p: pm.Normal("y", p[:, 1:], 1, observed=np.ones((3, 2))), r"with latent=\[\.\.\.\]"),
    ],
    ids=["multiplied", "sliced"],
)
def test_whole_products_that_are_no_predictors_of_cells(use, message):
    """They are not taken for bilinear likelihoods, about the shape of which there would be nothing good to say."""
    with pm.Model() as model:
        V, U = (pm.Normal(name, shape=(3, 2)) for name in "VU")
        use(V @ U.T)
    with pytest.raises(pmep.UnsupportedModelError, match=message):
        compiled_form(model, None)


def test_a_whole_product_in_a_covariance_is_of_hyperparameters():
    with pm.Model() as model:
        V, U = (pm.Normal(name, shape=(3, 2)) for name in "VU")
        product = V @ U.T
        pm.MvNormal("y", np.zeros(3), product @ product.T + np.eye(3), observed=np.ones((2, 3)))
    form = compiled_form(model, None).form
    assert form.latent_names == ()
    assert form.hyper_names == ("V", "U")


def test_a_bias_at_another_variable_of_the_same_values():
    with pm.Model() as model:
        V, U, b = pm.Normal("V", shape=(3, 2)), pm.Normal("U", shape=(3, 2)), pm.Normal("b", shape=3)
        f = (V[pm.Data("rows", ROWS)] * U[COLS]).sum(-1)
        pm.Normal("y", f + b[ROWS], 1, observed=np.arange(5.0))
    with pytest.raises(pmep.UnsupportedModelError, match=r"'b' is taken at the indices at which 'V' is.*Take both"):
        compiled_form(model, None)
    # Unless it is asked for as a hyperparameter.
    assert compiled_form(model, ["V", "U"]).form.hyper_names == ("b",)


def test_one_row_for_all_cells():
    def evidence(rows):
        with pm.Model() as model:
            V, U = (pm.Normal(name, shape=(3, 2)) for name in "VU")
            pm.Normal("y", (V[rows] * U[COLS]).sum(-1), 1, observed=np.arange(5.0))
        return float(pmep.fit("vg", model=model, draws=0, progressbar=False)["fit"]["log_evidence"])

    np.testing.assert_allclose(evidence(np.array([1])), evidence(np.ones(5, int)), rtol=1e-12)


@pytest.mark.parametrize(
    "predictor",
    [
        lambda V, U: (V[:, [0, 1]] * U[:, [1, 0]]).sum(-1),
        lambda V, U: (V.T @ U)[[0, 1, 1], [1, 1, 0]],
        lambda V, U: (V @ U.T)[[0, 1, 1]][:, 2],
        lambda V, U: (V @ U.T)[1:, [0, 1]].sum(-1),
    ],
    ids=["columns", "products of columns", "twice", "slice"],
)
def test_what_is_like_inner_products_and_is_none(predictor):
    """All of these are of three cells, and none is a vector of inner products of rows at indices."""
    with pm.Model() as model:
        V, U = (pm.Normal(name, shape=(3, 2)) for name in "VU")
        mean = predictor(V, U)
        pm.Normal("y", mean, 1, observed=np.zeros(mean.shape.eval()))
    with pytest.raises(pmep.UnsupportedModelError, match=r"\(V @ U\.T\)\[rows, cols\]"):
        compiled_form(model, None)


def test_probabilistic_matrix_factorization_as_pymc_writes_it():
    """Of ratings with gaps: multivariate normal rows of one precision, and a precision of the noise."""
    with pm.Model(coords={"factor": range(2), "seen": range(5)}) as model:
        V, U = (pm.MvNormal(name, mu=0, tau=4 * np.eye(2), shape=(3, 2)) for name in "VU")
        pm.Normal("y", mu=(V @ U.T)[MASK], tau=2.0, dims="seen", observed=np.arange(5.0))
    form = compiled_form(model, None)
    prior = form.prior(form.start)
    np.testing.assert_allclose(prior.left[1], 0.25)
    np.testing.assert_allclose(prior.parameters[0], 0.5**0.5)
    assert pmep.fit(model=model, draws=0, progressbar=False)["fit"].attrs["method"] == "vg"


def test_a_covariance_of_rows_that_is_not_symmetric_is_refused():
    with pm.Model() as model:
        V, U = pm.MvNormal("V", np.zeros(2), [[1.0, 0.5], [0.1, 1.0]], shape=(3, 2)), pm.Normal("U", shape=(3, 2))
        pm.Normal("y", mu=(V @ U.T)[MASK], sigma=1.0, observed=np.arange(5.0))
    with pytest.raises(
        pmep.InvalidDataError, match=r"covariance matrix of 'V' is not symmetric: it is 0\.5 at index \(0"
    ):
        compiled_form(model, None)


def test_cells_by_label():
    """Labels of text stand for their positions; numbers are positions, whatever the labels."""
    coords = {"film": ["heat", "alien"], "year": [1990, 1980], "factor": [0]}
    by_label = {"rows": pd.Series(["alien", "heat", "heat"]), "cols": [0, 1, 1]}
    values = []
    for cells in (by_label, {"rows": [1, 0, 0], "cols": [0, 1, 1]}):
        with pm.Model(coords=coords) as model:
            V, U = pm.Normal("V", dims=("film", "factor")), pm.Normal("U", dims=("year", "factor"))
            pmep.BilinearPoisson("y", V, U, **cells, observed=[2, 0, 1])
        values.append(model.compile_logp()({"V": [[0.1], [0.5]], "U": [[-1.0], [2.0]]}))
    assert values[0] == values[1]
    with model, pytest.raises(pmep.InvalidDataError, match="'z': row has 'up' at index 1"):
        pmep.BilinearPoisson("z", V, U, rows=["heat", "up"], cols=[0, 1], observed=[1, 1])
