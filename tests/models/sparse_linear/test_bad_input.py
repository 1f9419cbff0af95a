"""Wrong input to sparse linear models on images: each is refused by name with a cure, or the result says what it is."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.sparse
import scipy.sparse.linalg

import pymc_ep as pmep
from pymc_ep.models.sparse_linear import probing
from pymc_ep.numerics import memory
from pymc_ep.operators import Convolution2D, Gradient2D, Mask, Wavelet2D
from pymc_ep.results import fit_group

SHAPE = (6, 6)
QUIET = {"method": "ep", "draws": 0, "progressbar": False}
COUNTS = np.random.default_rng(0).poisson(np.where(np.arange(6) < 3, 2.0, 6.0), SHAPE)
BLUR = Convolution2D(SHAPE, np.outer([0.2, 0.6, 0.2], [0.1, 0.7, 0.2]), boundary="periodic")


def field(name="u", operator=None, scale=1.0, **options):
    options = {
        "operator": Gradient2D(SHAPE) if operator is None else operator,
        "potential": pm.Laplace.dist(0, scale),
    } | options
    return pmep.SparseField(name, **options)


def blurred(**options):
    return pmep.apply_operator(BLUR, field(**options))


def fitted(build, **options):
    with pm.Model():
        build()
        return fit_group(pmep.fit(**(QUIET | options)))


def refused(build, error, message, **options):
    """Building or fitting raises."""
    with pytest.raises(error, match=message):
        fitted(build, **options)


# Observations


@pytest.mark.parametrize(("value", "message"), [(-1.0, "-1"), (1.5, r"1\.5"), (np.nan, "nan"), (np.inf, "inf")])
def test_no_counts(value, message):
    with pm.Model() as model:
        counts = pm.Data("counts", COUNTS.astype(float))
        pmep.RectifiedPoisson("y", blurred(), observed=counts)
        wrong = COUNTS.astype(float)
        wrong[2, 3] = value
        pm.set_data({"counts": wrong})
    with pytest.raises(pmep.InvalidDataError, match=rf"'y'.*{message}.*index \(2, 3\).*counts.*(Correct|remove)"):
        pmep.fit(model=model, **QUIET)


def test_negative_constant_counts():
    wrong = np.where(np.arange(36).reshape(SHAPE) == 8, -3, COUNTS)
    refused(
        lambda: pmep.RectifiedPoisson("y", blurred(), observed=wrong),
        pmep.InvalidDataError,
        r"'y'.*-3.*index \(1, 2\)",
    )


def test_an_image_of_zeros_is_no_silent_result():
    """Every negative level explains it as well as any other: the posterior is improper, and the fit says so."""
    with pm.Model() as model:
        pmep.RectifiedPoisson("y", blurred(), observed=0 * COUNTS)
    with pytest.warns(pmep.ConvergenceWarning, match=r"flat prior of 'u'.*improper.*all counts are zero"):
        fit = fit_group(pmep.fit(model=model, **QUIET))
    assert not bool(fit["converged"])


def test_an_image_of_zeros_without_mass_at_negative_rates():
    """Cut to rates of at least zero, the posterior is proper: all intensities are near zero, and positive."""
    with pm.Model() as model:
        pmep.RectifiedPoisson("y", blurred(), zero_mass=False, observed=0 * COUNTS)
    idata = pmep.fit(model=model, **QUIET)
    assert bool(idata["fit"]["converged"])
    assert 0 < float(idata["posterior_mean"]["u"].min()) < float(idata["posterior_mean"]["u"].max()) < 1


def test_a_mask_that_removes_everything():
    nothing = np.zeros(SHAPE, dtype=bool)
    refused(
        lambda: pmep.RectifiedPoisson("y", field()[nothing], observed=np.zeros(0, dtype=int)),
        pmep.InvalidDataError,
        "'y' has no observations",
    )
    refused(lambda: pmep.apply_operator(Mask(SHAPE, nothing), field()), pmep.InvalidDataError, "at least one")


@pytest.mark.parametrize("value", [np.nan, 0.0, -1.0])
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_noise_that_is_not_positive(value):
    sigma = np.where(COUNTS[2, 1] == COUNTS, value, 1.0)
    first = int(np.flatnonzero(COUNTS[2, 1] == COUNTS)[0])
    refused(
        lambda: pm.Normal("y", blurred(), sigma, observed=COUNTS.astype(float)),
        pmep.InvalidDataError,
        rf"'y'.*sigma = {value}.*index ({first}|\({first // 6}, {first % 6}\)).*positive",
    )


def test_exposure_that_is_not_finite():
    exposure = np.where(np.arange(36).reshape(SHAPE) == 15, np.nan, 1.0)
    refused(
        lambda: pmep.RectifiedPoisson("y", exposure * blurred(), observed=COUNTS),
        (pmep.InvalidDataError, pmep.NumericalError),
        "observation 15 of 'y' is nan.*NaN",
    )


# Operators


def test_operators_that_do_not_fit():
    refused(lambda: field(shape=(5, 5)), pmep.UnsupportedModelError, r"shape=\(5, 5\).*\(6, 6\)")
    refused(lambda: field(operator=np.eye(30), shape=SHAPE), pmep.InvalidDataError, r"30 elements.*\(6, 6\), 36")
    other = Convolution2D((8, 8), np.ones((3, 3)))
    refused(
        lambda: pmep.apply_operator(other, field()), pmep.InvalidDataError, r"arrays of shape \(8, 8\).*u has.*\(6, 6\)"
    )


def test_operators_without_an_adjoint():
    forward = scipy.sparse.linalg.LinearOperator((36, 36), matvec=lambda x: 2 * x)
    refused(lambda: pmep.apply_operator(forward, field()), pmep.UnsupportedModelError, "no adjoint.*rmatvec")
    refused(lambda: field(operator=forward, shape=SHAPE), pmep.UnsupportedModelError, "no adjoint.*rmatvec")
    wrong = scipy.sparse.linalg.LinearOperator((36, 36), matvec=lambda x: 2 * x, rmatvec=lambda x: x)
    refused(lambda: pmep.apply_operator(wrong, field()), pmep.UnsupportedModelError, "wrong adjoint")


@pytest.mark.parametrize(
    "operator", [lambda x: x**2, [[1.0, 2.0]], "gradient", None], ids=["function", "list", "name", "nothing"]
)
def test_operators_that_are_none(operator):
    refused(lambda: pmep.apply_operator(operator, field()), pmep.UnsupportedModelError, "no linear map; give")


def test_wavelets_that_do_not_fit():
    refused(lambda: Wavelet2D(SHAPE, "db77", 1), pmep.InvalidDataError, "no discrete wavelet 'db77'.*haar")
    refused(
        lambda: Wavelet2D(SHAPE, "haar", 2), pmep.InvalidDataError, r"2 levels.*multiples of 4.*levels=1 is the most"
    )
    refused(lambda: Wavelet2D(SHAPE, "bior2.2", 1), pmep.InvalidDataError, r"'bior2\.2' is not orthonormal")


# Potentials


@pytest.mark.parametrize("scale", [0.0, -2.0, np.nan])
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_scales_that_are_not_positive(scale):
    refused(lambda: blurred(scale=np.array(scale)), pmep.InvalidDataError, rf"scale {scale}.*must be positive")
    with pm.Model() as model:
        b = pm.Data("b", 1.0)
        pmep.RectifiedPoisson("y", blurred(scale=b), observed=COUNTS)
        pm.set_data({"b": scale})
    with pytest.raises(pmep.InvalidDataError, match=rf"'u'.*b = {scale}.*positive"):
        pmep.fit(model=model, **QUIET)


def test_scales_that_do_not_fit():
    refused(lambda: blurred(scale=np.ones(7)), pmep.UnsupportedModelError, "7 values.*60 coefficients")
    refused(
        lambda: blurred(scale=pm.HalfNormal("b", shape=60)),
        pmep.UnsupportedModelError,
        "cannot learn one scale for each group.*60 coefficients and rank 35.*Wavelet2D",
    )


def test_a_scale_that_may_be_negative():
    refused(
        lambda: pmep.RectifiedPoisson("y", blurred(scale=pm.Normal("b", -1.0, 1.0)), observed=COUNTS),
        pmep.InvalidDataError,
        r"'u'.*b = -1.*positive",
    )


def test_potentials_that_are_none():
    refused(lambda: field(potential=pm.Cauchy.dist(0, 1)), pmep.UnsupportedModelError, r"none of pm\.Laplace\.dist")
    refused(lambda: field(potential=pm.Laplace("v", 0, 1)), pmep.UnsupportedModelError, r"'v'.*pm\.Laplace\.dist")
    refused(
        lambda: field(potential=pm.Laplace.dist(pm.Normal("m"), 1)), pmep.UnsupportedModelError, "location.*constant 0"
    )


# What prior and likelihood leave open


def detail(shape=SHAPE):
    return Convolution2D(shape, np.array([[0.0, -1.0, 0.0], [-1.0, 4.0, -1.0], [0.0, -1.0, 0.0]]), boundary="periodic")


def half_masked():
    mask = np.ones((8, 8), dtype=bool)
    mask[:4, :4] = False
    pm.Normal("y", field(operator=Wavelet2D((8, 8), "haar", 2))[mask], 1.0, observed=np.ones(48))


@pytest.mark.parametrize(
    "build",
    [
        lambda: pm.Normal("y", pmep.apply_operator(detail(), field()), 1.0, observed=np.ones(SHAPE)),
        lambda: pmep.RectifiedPoisson("y", 0.0 * blurred() + 1.0, observed=COUNTS),
        lambda: pm.Normal("y", pmep.apply_operator(Gradient2D(SHAPE), field()), 1.0, observed=np.ones(60)),
        half_masked,
    ],
    ids=["kernel of zero sum", "no exposure", "differences of differences", "mask over a scaling coefficient"],
)
def test_null_spaces_are_named(build):
    refused(build, pmep.InvalidDataError, r"do not determine 'u'\[\d, \d\]")


def test_a_flat_level_beside_a_field():
    refused(
        lambda: pmep.RectifiedPoisson("y", blurred() + pm.Flat("level"), observed=COUNTS),
        pmep.InvalidDataError,
        "do not determine '(level|u)'",
    )


# Models of another form


@pytest.mark.parametrize(
    "build",
    [
        lambda tau: tau * blurred(),
        lambda tau: blurred() / (1.0 + tau),
        lambda tau: pmep.apply_operator(BLUR, pt.exp(tau) * field()),
    ],
)
def test_hyperparameters_in_the_map(build):
    refused(
        lambda: pmep.RectifiedPoisson("y", build(pm.HalfNormal("tau")), observed=COUNTS),
        pmep.UnsupportedModelError,
        "hyperparameter 'tau' takes part in a linear map of 'u'.*scale into the potential",
    )


def test_maps_that_are_not_linear():
    for function, operation in ((pt.sqr, "Sqr"), (pt.abs, "Abs"), (pt.exp, "Exp"), (lambda u: u**2, "Pow")):
        refused(
            lambda function=function: pmep.RectifiedPoisson(
                "y", pmep.apply_operator(BLUR, function(field())), observed=COUNTS
            ),
            pmep.UnsupportedModelError,
            rf"'y' is not affine.*the operation {operation} is applied to 'u' before apply_operator.*Rewrite",
        )
    for function in (pt.sqr, pt.abs):
        refused(
            lambda function=function: pmep.RectifiedPoisson("y", function(blurred()), observed=COUNTS),
            pmep.UnsupportedModelError,
            r"'y'.*(squared.*linear in the field|not affine)",
        )
    refused(
        lambda: pm.Normal("y", field() ** 2, pm.HalfNormal("s"), observed=np.ones(SHAPE)),
        pmep.UnsupportedModelError,
        "'y'.*squared.*linear in the field",
    )
    refused(
        lambda: pmep.RectifiedPoisson("y", field("u") * field("v"), observed=COUNTS),
        pmep.UnsupportedModelError,
        "'u', 'v'.*product",
    )


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: pm.MvNormal("g", np.zeros(6), np.eye(6) + 0.5), "g"),
        (lambda: pm.ZeroSumNormal("g", 1.0, shape=6), "g"),
        (lambda: pm.GaussianRandomWalk("g", sigma=1.0, init_dist=pm.Normal.dist(), shape=6), "g"),
        (lambda: pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=2.0)).prior("g", X=np.arange(6.0)[:, None]), "g"),
    ],
    ids=["MvNormal", "ZeroSumNormal", "GaussianRandomWalk", "gp.Latent"],
)
def test_dependent_gaussian_variables_beside_a_field(build, name):
    refused(
        lambda: pmep.RectifiedPoisson("y", blurred() + build(), observed=COUNTS),
        pmep.UnsupportedModelError,
        rf"'{name}.*depend on each other.*SparseField",
    )


def test_a_potential_of_pymc_on_a_field():
    def build():
        u = field()
        pm.Normal("y", u, 1.0, observed=np.ones(SHAPE))
        pm.Potential("more", -pm.math.dot(u[0], u[1]))

    refused(build, pmep.UnsupportedModelError, "potential 'more' depends on a latent variable")


def test_an_observed_field():
    refused(lambda: field(observed=np.ones(SHAPE)), pmep.UnsupportedModelError, "'u'.*SparseField.*depend on each")


def test_a_field_that_nothing_observes():
    with pm.Model() as model:
        field()
        pm.Normal("y", pm.Normal("m"), 1.0, observed=[1.0, 2.0])
    assert "u" in pmep.explain(model)
    assert "u" not in pmep.fit(model=model, **QUIET)["posterior_mean"]


def test_options_of_other_forms():
    def build():
        pm.Normal("y", blurred(), 1.0, observed=np.ones(SHAPE))

    refused(build, ValueError, "solver='observations' must be 'auto'.*SparseField", solver="observations")


def test_other_densities_of_a_predictor_are_taken():
    """Sites that nobody registered: a skewed noise, and a field of log scales."""
    for write in (
        lambda u: pm.SkewNormal("y", mu=u, sigma=1.0, alpha=2.0, observed=COUNTS.astype(float)),
        lambda u: pm.Normal("y", 0.0, pt.exp(u), observed=COUNTS.astype(float) + 1.0),
    ):
        with pm.Model() as model:
            write(field())
        assert "likelihood generic" in pmep.explain(model)


# Size


def test_memory_is_foreseen(monkeypatch):
    monkeypatch.setattr(memory, "_free_memory", lambda: 10_000)
    with pm.Model() as model:
        pm.Normal("y", blurred(), 1.0, observed=np.ones(SHAPE))
    with pytest.raises(pmep.InvalidDataError, match=r"36 unknowns need .* GB.*are free.*method='dsb'.*perturb-and-map"):
        pmep.fit(model=model, **QUIET)
    assert "products with vectors only" in pmep.explain(model)


def test_dense_memory_under_jax_is_foreseen(monkeypatch):
    """Where the sparse factor still fits, which the cure leads to."""
    pytest.importorskip("jax")
    monkeypatch.setattr(memory, "_free_memory", lambda: 300_000)
    with pm.Model() as model:
        pm.Normal("y", blurred(), 1.0, observed=np.ones(SHAPE))
    with pytest.raises(
        pmep.InvalidDataError, match=r"JAX 36 unknowns need .* GB.*are free.*96 x 36.*Leave compile_kwargs=.*JAX.*out"
    ):
        pmep.fit(model=model, compile_kwargs={"mode": "JAX"}, **QUIET)
    assert bool(fit_group(pmep.fit(model=model, **QUIET))["converged"])


@pytest.mark.parametrize("variance", ["perturb-and-map", "lanczos"])
def test_estimated_variances_are_refused_under_jax(variance):
    pytest.importorskip("jax")
    with pm.Model() as model:
        u = pmep.SparseField("u", operator=pmep.operators.Gradient2D(SHAPE), potential=pm.Laplace.dist(0, 1.0))
        pm.Normal("y", u, 1.0, observed=np.ones(SHAPE))
    with pytest.raises(pmep.UnsupportedModelError, match=f"variance='{variance}' .* leave .*JAX.* out"):
        pmep.fit(model=model, variance=variance, compile_kwargs={"mode": "JAX"}, **(QUIET | {"method": "dsb"}))


def test_maps_without_entries(monkeypatch):
    """Beyond a size, a map that is not local has too many entries to find or to hold."""
    monkeypatch.setattr(probing, "MOST_UNKNOWNS", 20)
    projections = scipy.sparse.linalg.aslinearoperator(np.random.default_rng(1).normal(size=(30, 64)))
    with pm.Model() as model:
        pm.Normal("y", pmep.apply_operator(projections, field(operator=Gradient2D((8, 8)))), 1.0, observed=np.ones(30))
    with pytest.raises(pmep.UnsupportedModelError, match=r"map behind 'y' is not local.*method='dsb'"):
        pmep.fit(model=model, **QUIET)
    assert "products with vectors only" in pmep.explain(model)
    pytest.importorskip("jax")
    with pytest.raises(pmep.UnsupportedModelError, match="perturb-and-map' and without compile_kwargs= and device="):
        pmep.fit(model=model, device="cpu", **(QUIET | {"method": "dsb"}))


def test_an_iteration_that_ends_too_early_says_so():
    with pm.Model() as model:
        pmep.RectifiedPoisson("y", blurred(), observed=COUNTS)
    with pytest.warns(pmep.ConvergenceWarning, match="The result of ep may be off: stopped after 1"):
        fit = fit_group(pmep.fit(model=model, max_iter=1, **QUIET))
    assert not bool(fit["converged"])
