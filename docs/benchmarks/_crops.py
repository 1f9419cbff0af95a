"""What the check by NUTS fits: 16 x 16 crops of a picture, and the models, each also written out for NUTS."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.sparse
import scipy.sparse
from scipy import ndimage, optimize, stats
from skimage import color, data

import pymc_ep as pmep
from docs.benchmarks._images import area_average

__all__ = [
    "CHECKS",
    "CROPS",
    "HALF_SD",
    "LEVELS",
    "NU",
    "QUARTER_SD",
    "SD",
    "SHAPE",
    "TAU",
    "U_MAX",
    "Case",
    "Check",
    "same_density",
]

SHAPE = (16, 16)
EYE = (40, 96)
"""First row and column of the crop at the astronaut's eye, in the picture of 256 x 256."""
CROPS = 8
"""At random places, for the coverage of inpainting."""
TAPS = np.array([0.25, 0.5, 0.25])
BLUR = np.outer(TAPS, TAPS)
SD, TAU, U_MAX = 0.05, 8.0, 20
"""Of the Gaussian noise; of the potentials, for a picture from 0 to 1; photons at the brightest pixel."""
NU, LEVELS = 2.1, 3
HALF_SD, QUARTER_SD = 0.03, 10**-2.5
"""Of the noise where half, and where a quarter of the pixels are seen."""


class Case(NamedTuple):
    """A model with what is needed to check a fit of it."""

    model: pm.Model
    truth: np.ndarray
    y: np.ndarray
    """As a picture; NaN where nothing was observed."""


def crop(row: int, column: int) -> np.ndarray:
    """Return 16 x 16 pixels of the grey astronaut, shrunk to 256 x 256, from 0 to 1."""
    picture = area_average(color.rgb2gray(data.astronaut()), 256)
    return picture[row : row + SHAPE[0], column : column + SHAPE[1]]


def places() -> list[tuple[int, int]]:
    """Return where the random crops are."""
    return [(int(r), int(c)) for r, c in np.random.default_rng(2).integers(0, 256 - SHAPE[0], (CROPS, 2))]


def times(operator: Any, x: Any) -> Any:
    """Return the flat product of an operator's matrix, which Numba compiles, where our own Op calls back to Python."""
    matrix = scipy.sparse.csr_matrix(operator.matrix())
    return pytensor.sparse.structured_dot(pytensor.sparse.as_sparse_variable(matrix), x.ravel()[:, None])[:, 0]


def field(operator: Any, potential: Any, scale: Any, plain: bool) -> Any:
    """Add the picture: a SparseField, or the same density written out, for NUTS."""
    if not plain:
        return pmep.SparseField("u", operator=operator, potential=potential(scale), shape=SHAPE)
    u, coefficients = pm.Flat("u", shape=SHAPE), int(np.prod(operator.output_shape))
    own = scale if not np.ndim(scale) else scale[operator.groups]
    log_density = pm.logp(potential(own), times(operator, u)).sum()
    # As many powers of the scale as the rank of the operator: fewer than coefficients where differences form loops.
    surplus = coefficients - operator.rank
    pm.Potential("prior", log_density + surplus * pm.math.log(scale) if surplus else log_density)
    return u


def total_variation(noise: str, learn: bool = False, plain: bool = False) -> Case:
    """Blur the crop and observe it; Laplace potentials on differences."""
    rng = np.random.default_rng(0)
    truth = crop(*EYE)
    tau: Any = TAU
    if noise != "gaussian":
        peak = U_MAX / truth.max()
        truth, tau = truth * peak, TAU / peak
    blurred = ndimage.convolve(truth, BLUR, mode="reflect")
    y = blurred + rng.normal(0, SD, SHAPE) if noise == "gaussian" else rng.poisson(blurred)
    blur = pmep.operators.Convolution2D(SHAPE, BLUR, boundary="reflect")
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 50) if learn else tau
        u = field(pmep.operators.Gradient2D(SHAPE), lambda scale: pm.Laplace.dist(0, scale), 1 / tau, plain)
        f = times(blur, u).reshape(SHAPE) if plain else pmep.apply_operator(blur, u)
        if noise == "gaussian":
            pm.Normal("y", f, SD, observed=y)
        else:
            (pmep.RectifiedPoisson if noise == "rectified" else pmep.SoftplusPoisson)("y", f, observed=y)
    return Case(model, truth, y)


def inpainting(
    place: tuple[int, int],
    kept: float,
    sd: float,
    learn: bool = False,
    seed: int = 0,
    differences: bool = False,
    plain: bool = False,
) -> Case:
    """Observe some of the pixels of a crop; Student-t potentials on wavelets, or Laplace ones on second differences."""
    rng = np.random.default_rng(seed)
    truth = crop(*place)
    seen = np.zeros(truth.size, dtype=bool)
    seen[rng.choice(truth.size, int(kept * truth.size), replace=False)] = True
    seen = seen.reshape(SHAPE)
    y = np.where(seen, truth + rng.normal(0, sd, SHAPE), np.nan)
    with pm.Model() as model:
        if differences:
            operator = pmep.operators.Hessian2D(SHAPE)
            u = field(operator, lambda scale: pm.Laplace.dist(0, scale), scale_of_differences(), plain)
        else:
            scale = pm.HalfNormal("b", 1, shape=LEVELS) if learn else scales()
            operator = pmep.operators.Wavelet2D(SHAPE, "db2", LEVELS)
            u = field(operator, lambda scale: pm.StudentT.dist(nu=NU, sigma=scale), scale, plain)
        pm.Normal("y", u[seen], sd, observed=y[seen])
    return Case(model, truth, y)


def scales() -> np.ndarray:
    """Return each level's scale of greatest likelihood for the true coefficients of all crops."""
    wavelets = pmep.operators.Wavelet2D(SHAPE, "db2", LEVELS)
    coefficients = np.array([wavelets.forward(crop(*place)) for place in [EYE, *places()]])

    def best(level: int) -> float:
        mine = coefficients[:, wavelets.groups == level]
        found = optimize.minimize_scalar(
            lambda log_scale: -stats.t.logpdf(mine, NU, scale=np.exp(log_scale)).sum(), bounds=(-10, 3)
        )
        return float(np.exp(found.x))

    return np.array([best(level) for level in range(LEVELS)])


def scale_of_differences() -> float:
    """Return the Laplace scale of greatest likelihood for the true second differences of all crops."""
    operator = pmep.operators.Hessian2D(SHAPE)
    totals = [np.abs(operator.forward(crop(*place))).sum() for place in [EYE, *places()]]
    return float(np.mean(totals) / operator.rank)


def same_density(case: Case, plain: Case) -> None:
    """Refuse unless two models' log densities differ by the same constant at several points."""
    rng = np.random.default_rng(0)
    points = [{k: rng.normal(2, 0.5, np.shape(v)) for k, v in case.model.initial_point().items()} for _ in range(4)]
    apart = np.subtract(*([one.model.compile_logp()(p) for p in points] for one in (case, plain)))
    if np.ptp(apart) > 1e-8:
        raise ValueError(f"The densities of the two models differ by {apart}, which is no constant.")


class Check(NamedTuple):
    """One row of the page: a case, and what is fitted to it."""

    title: str
    build: Callable[..., Case]
    engines: tuple[str, ...]
    draws: int = 5000


CHECKS = {
    "gaussian": Check("total variation, Gaussian noise", partial(total_variation, "gaussian"), ("EP", "double loop")),
    "rectified": Check("total variation, rectified counts", partial(total_variation, "rectified"), ("EP",)),
    "softplus": Check("total variation, softplus counts", partial(total_variation, "softplus"), ("EP", "double loop")),
    "tau": Check(
        "total variation, Gaussian noise, tau learned",
        partial(total_variation, "gaussian", learn=True),
        ("EP", "EP, integrated", "double loop"),
    ),
    "half": Check(
        "Student-t, half seen, noise 0.03",
        partial(inpainting, EYE, 0.5, HALF_SD),
        ("EP", "EP, power 0.25", "double loop"),
        12_000,
    ),
    "quarter": Check(
        "Student-t, a quarter seen",
        partial(inpainting, EYE, 0.25, QUARTER_SD),
        ("EP", "EP, power 0.25", "double loop"),
        12_000,
    ),
    "scales": Check(
        "Student-t, a quarter seen, scales learned",
        partial(inpainting, EYE, 0.25, QUARTER_SD, learn=True),
        ("double loop",),
        12_000,
    ),
    "differences": Check(
        "Laplace on second differences, a quarter seen",
        partial(inpainting, EYE, 0.25, QUARTER_SD, differences=True),
        ("EP", "double loop"),
        12_000,
    ),
}
for _k, _place in enumerate(places()):
    _build = partial(inpainting, _place, 0.25, QUARTER_SD, seed=_k + 1)
    CHECKS[f"crop {_k}"] = Check(f"crop at {_place}", _build, ("EP, power 0.25", "double loop"), 10_000)
    _build = partial(_build, learn=True)
    CHECKS[f"crop {_k}, scales"] = Check(f"crop at {_place}, scales learned", _build, ("double loop",), 4000)
