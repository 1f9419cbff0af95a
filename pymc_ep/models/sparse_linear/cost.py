"""Cost of fits of a sparse linear form, from its sizes: by factors of the precision, or by products with vectors."""

from pymc_ep.contracts.cost import Cost
from pymc_ep.models.sparse_linear.compiled import CompiledSparseLinear
from pymc_ep.numerics.precision.plan import dense_need, factor_need

__all__ = ["cost_of_factors", "cost_of_products"]

_NUMBERS = 90
"""Doubles in memory at a time for each site, besides factors or draws: measured with pictures of 128 x 128 and
256 x 256."""
_FACTOR_SECONDS, _PER_SECOND = 1.2e-6, 1e10
"""Speed of a factorisation on one core of a server of 2023: seconds for each unknown, plus a time for its
floating-point operations, at so many a second."""
_SITE_SECONDS = 3e-6
"""Time of the moments of one site, s."""
_PRODUCTS, _PRODUCT_SECONDS = 30, 5e-8
"""Mean number of conjugate gradient iterations for a solution, and the time of one for each unknown, s."""


def cost_of_factors(form: CompiledSparseLinear, steps: int, factors: int, unit: str, numbers: int = _NUMBERS) -> Cost:
    """Return the cost of `steps` steps with `factors` factorisations each, which hold `numbers` doubles for each site.

    `unit` describes the steps in the message.

    Raises
    ------
    UnsupportedModelError
        If a linear map has no matrix, see `LinearPredictors.matrix`.
    InvalidDataError
        If a factor does not fit into memory.
    """
    linear, n = form.linear, sum(y.size for y in form.observed())
    if form.on_jax:
        # N^2 n operations for D^T diag(pi) D, and about N^3 for its factor and inverse.
        (needed, what, arrays, cure), flops = dense_need(linear.matrix), float(linear.size) ** 2 * (n + linear.size)
    else:
        (needed, what, arrays, cure), flops = factor_need(linear.algebra), linear.algebra.flops
    seconds = factors * (_FACTOR_SECONDS * linear.size + flops / _PER_SECOND) + _SITE_SECONDS * n
    need = needed + 8 * numbers * n
    return Cost(need, steps * seconds, what, arrays, f"some {steps} {unit}", cure, on_jax=form.on_jax)


def cost_of_products(form: CompiledSparseLinear, steps: int, solutions: int, draws: int) -> Cost:
    """Return the cost of `steps` outer loops with `solutions` by conjugate gradients each, and `draws` in memory."""
    n, size = sum(y.size for y in form.observed()), form.linear.size
    return Cost(
        8 * (_NUMBERS * n + draws * (n + size)),
        steps * (solutions * _PRODUCTS * _PRODUCT_SECONDS * size + _SITE_SECONDS * n),
        f"A fit of {size} unknowns needs",
        f"{_NUMBERS} vectors of {n} sites and {draws} draws" if draws else f"{_NUMBERS} vectors of {n} sites",
        f"some {steps} outer loops",
        "Use fewer draws by n_samples=, or a smaller image." if draws else "Use a smaller image.",
    )
