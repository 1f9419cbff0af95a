"""What does not matter does not change an answer: the order of rows, names and order of labels, and units.

Each registered method fits a model as it stands and as written anew: with rows and labels in another order and under
other names, or with data and priors in another unit. Undone, the change leaves evidence and moments as they were.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytest
from scipy import sparse

import pymc_ep as pmep
from pymc_ep.compat import group, group_names
from pymc_ep.forms import able_methods, compiled_form, methods


class Change(NamedTuple):
    """How a model is written anew: in which order, under which names, and in which unit."""

    seed: int | None = None
    unit: float = 1.0

    def order(self, n: int) -> np.ndarray:
        """Old places of n rows or labels, in their new order."""
        return np.arange(n) if self.seed is None else np.random.default_rng(self.seed).permutation(n)

    def places(self, n: int) -> np.ndarray:
        """New places of n rows or labels."""
        return np.argsort(self.order(n))

    def names(self, n: int) -> list[str]:
        return [f"{'old' if self.seed is None else 'new'}{k}" for k in self.order(n)]


SAME = Change()
CHANGES = {"order and names": Change(seed=3), "1e6": Change(unit=1e6), "1e-6": Change(unit=1e-6)}


def robust_regression(change):
    rng, n, p = np.random.default_rng(0), 18, 2
    x, group_of = rng.normal(size=(n, p)), np.arange(n) % 3
    y = x @ [1.0, -0.7] + rng.normal(0, 0.7, 3)[group_of] + 0.5 * rng.standard_t(3, n)
    u, rows, features, groups = change.unit, change.order(n), change.order(p), change.places(3)
    with pm.Model(coords={"feature": change.names(p), "group": change.names(3)}) as model:
        b = pm.Normal("b", 0, np.array([1.0, 2.0])[features] * u, dims="feature")
        v = pm.Normal("v", 0, pm.HalfNormal("spread", u), dims="group")
        mean = x[rows][:, features] @ b + v[groups[group_of[rows]]] + pm.Normal("level", 0, 3 * u)
        pm.StudentT("y", nu=4, mu=mean, sigma=pm.HalfNormal("noise", u), observed=y[rows] * u)
    return model


def counts(change):
    """Covariates in another unit, as the counts have none."""
    rng, n, p = np.random.default_rng(1), 16, 2
    x, u = rng.normal(size=(n, p)), change.unit
    y, rows, features = rng.poisson(np.exp(0.5 + x @ [0.6, -0.4])), change.order(n), change.order(p)
    with pm.Model(coords={"feature": change.names(p)}) as model:
        b = pm.Normal("b", 0, pm.HalfNormal("spread", 1 / u), dims="feature")
        pm.Poisson("y", pm.math.exp(x[rows][:, features] * u @ b + pm.Normal("level", 0, 3)), observed=y[rows])
    return model


def process(change):
    rng, n, u = np.random.default_rng(2), 10, change.unit
    x, rows = np.sort(rng.uniform(0, 1, n)), change.order(n)
    y = np.sin(6 * x) + rng.normal(0, 0.3, n)
    with pm.Model(coords={"point": change.names(n)}) as model:
        kernel = np.exp(-0.5 * ((x[:, None] - x) / 0.3) ** 2)[rows][:, rows] + 1e-6 * np.eye(n)
        f = pm.MvNormal("f", np.zeros(n), pm.HalfNormal("amplitude", u) ** 2 * kernel, dims="point")
        pm.Laplace("y", f, 0.3 * u, observed=y[rows] * u)
    return model


def field(change):
    rng, n, u = np.random.default_rng(3), 9, change.unit
    y, rows = np.repeat([0.0, 2.0, 1.0], 3) + rng.normal(0, 0.3, n), change.order(n)
    with pm.Model() as model:
        differences = np.diff(np.eye(n), axis=0)[change.order(n - 1)][:, rows]
        potential = pm.Laplace.dist(0, pm.HalfNormal("b", u, initval=u))
        at = pmep.SparseField("u", operator=differences, potential=potential)
        pm.Normal("y", at, 0.3 * u, observed=y[rows] * u)
    return model


def tree(change):
    rng, u = np.random.default_rng(4), change.unit
    y = np.kron([[0.0, 1.0], [1.0, 1.0]], np.ones((4, 4))) + 0.3 * rng.normal(size=(8, 8))
    with pm.Model() as model:
        low, high = (
            pm.Laplace.dist(0, pm.HalfNormal(name, size * u, shape=2, initval=np.full(2, size * u)))
            for name, size in (("low", 0.1), ("high", 2.0))
        )
        image = pmep.WaveletTree("u", shape=(8, 8), levels=2, low=low, high=high)
        pm.Normal("y", image, 0.3 * u, observed=(y if change.seed is None else y.T) * u)
    return model


def counts_of_pairs(change):
    """The two matrices in other units, whose product has none."""
    rows, columns = change.places(6), change.places(5)
    order, u = change.order(30), change.unit
    left, right = np.divmod(np.arange(30), 5)
    table = np.random.default_rng(2).poisson(np.where(left % 2 == right % 2, 6.0, 0.5))
    with pm.Model(coords={"row": change.names(6), "column": change.names(5)}) as model:
        V = pm.Normal("V", 0, pm.HalfNormal("s", u), shape=(6, 2))
        U = pm.Normal("U", 0, 1 / u, shape=(5, 2))
        bias = pm.Normal("bias", 0, 1, dims="row")
        cells = rows[left[order]], columns[right[order]]
        pmep.BilinearPoisson("y", V, U, *cells, offset=bias[cells[0]], link="softplus", observed=table[order])
    return model


def comparisons(change):
    rng, order, users, items = np.random.default_rng(3), change.order(24), change.places(4), change.places(5)
    who, won = np.repeat(np.arange(4), 6), rng.integers(0, 5, 24)
    lost, x, at = (won + rng.integers(1, 5, 24)) % 5, np.linspace(0, 1, 5), change.order(5)
    kernel = np.exp(-0.5 * ((x[:, None] - x) / 0.4) ** 2)[at][:, at] + 0.1 * np.eye(5)
    u = change.unit
    with pm.Model(coords={"user": change.names(4), "item": change.names(5), "factor": range(2)}) as model:
        # Utilities have no unit; the kernel has one, and its scale.
        f = pmep.PreferenceUtility(
            "f",
            V=pm.Normal("V", 0, 1, dims=("item", "factor")),
            b=pm.Normal("b", 0, 1, dims="item"),
            kernel=kernel * u**2,
            sigma=pm.HalfNormal("sigma", 1 / u),
            dims=("user", "item"),
        )
        pmep.PairwiseLogit(
            "prefers",
            f,
            users=users[who[order]],
            winners=items[won[order]],
            losers=items[lost[order]],
        )
    return model


def pairs(change):
    """Two tastes, under a scale that keeps factors from being pruned, on the slow way to which an ascent would stop."""
    liked = np.arange(30)[:, None] % 2 == np.arange(16) % 2
    views = np.random.default_rng(2).binomial(1, np.where(liked, 0.8, 0.05))
    rows, columns, u = change.order(30), change.order(16), change.unit
    with pm.Model(coords={"row": change.names(30)}) as model:
        U = pm.Normal("U", 0, pm.Gamma("s", alpha=50, beta=50 / u), shape=(30, 1))
        V = pm.Normal("V", 0, 1 / u, shape=(16, 1))
        bias = pm.Normal("bias", 0, 1, dims="row")
        pmep.PairedSymbols("views", U, V, bias, 0, observed=sparse.csr_array(views[rows][:, columns]))
    return model


@dataclass(frozen=True, eq=False)
class Case:
    """A model, and what a change does to its results.

    Attributes
    ----------
    write : callable
        Writes the model under a change.
    axes : dict
        By variable: the lengths of its axes, None for a picture, which changes by a transposition; and the power of its
        unit.
    n : int
        The log evidence falls by n log(unit).
    untreated : tuple of str
        Treatments of hyperparameters that this model is not for.
    """

    write: Callable[[Change], pm.Model]
    axes: dict[str, tuple[tuple[int, ...] | None, int]]
    n: int = 0
    untreated: tuple[str, ...] = ("sample",)


CASES = (
    Case(robust_regression, {"b": ((2,), 1), "v": ((3,), 1), "level": ((), 1), "noise": ((), 1)}, n=18),
    Case(counts, {"b": ((2,), -1), "level": ((), 0), "spread": ((), -1)}),
    Case(process, {"f": ((10,), 1), "amplitude": ((), 1)}, n=10),
    Case(field, {"u": ((9,), 1), "b": ((), 1)}, n=8),
    # The double loop learns the scales of a tree by way of a saddle, which it leaves by rounding.
    Case(tree, {"u": (None, 1)}, n=60, untreated=("optimize", "integrate", "sample")),
    Case(counts_of_pairs, {"bias": ((6,), 0), "s": ((), 1)}),
    Case(comparisons, {"f": ((4, 5), 0), "b": ((5,), 0), "sigma": ((), -1)}, untreated=("integrate", "sample")),
    Case(pairs, {"bias": ((30,), 0), "s": ((), 1)}),
)
POSITIONAL = {
    "vbmf": "starts at random numbers, by position",
    "ml": "draws weights and the order of users by position",
}
"""Methods whose answers depend on the order of rows, by the seed."""
OPTIONS = {"vg": {"tol": 1e-9, "max_iter": 2000}, "paired_vb": {"tol": 1e-8, "max_iter": 2000}}
MEANS = {"posterior_mean": "posterior_mean", "posterior_sd": "posterior_mean", "posterior_mode": "posterior_mode"}
QUIET = {"draws": 20, "chains": 2}
TOLERANCE = {"integrate": 1e-3, "vg": 1e-3, "paired_vb": 2e-3}
"""Largest difference, in nats and sds: an ascent ends at a small change, and an emulator is taught around such ends."""


shared = cache(lambda write, change: write(change))
"""One model for all methods, so that it is compiled once."""


def fits(case):
    """Methods and treatments of hyperparameters that a model is for."""
    able = able_methods(compiled_form(shared(case.write, SAME)).form)
    # A mode of scales and of what they scale is at zero, and refused.
    left_out = {("map", "optimize")} | {(method.name, hyper) for method in able for hyper in case.untreated}
    return [pair for method in able for pair in product([method.name], method.hyper) if pair not in left_out]


@cache
def fitted(case, method, hyper, change):
    """Evidence, means and standard deviations, in the order, under the names and in the unit of the model itself."""
    with warnings.catch_warnings():
        # Of few data.
        warnings.simplefilter("ignore", UserWarning)
        model, options = shared(case.write, change), OPTIONS.get(method, {})
        found = pmep.fit(method, model=model, hyper=hyper, random_seed=1, progressbar=False, **QUIET, **options)
    fit, moments = group(found, "fit"), {}
    for name in set(MEANS) & set(group_names(found)):
        for key, (lengths, power) in case.axes.items():
            if key in group(found, name):
                value = group(found, name)[key].to_numpy() / change.unit**power
                if lengths is None and change.seed is not None:
                    value = value.T
                for axis, n in enumerate(lengths or ()):
                    value = np.take(value, change.places(n), axis)
                moments[name, key] = value
    evidence = float(fit["log_evidence"]) + case.n * np.log(change.unit) if "log_evidence" in fit else 0.0
    return evidence, moments, bool(fit["converged"])


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.write.__name__)
def test_a_model_written_anew_has_the_same_answer(case, change):
    for method, hyper in fits(case):
        if method in POSITIONAL and CHANGES[change].seed is not None:
            continue
        evidence, moments, converged = fitted(case, method, hyper, SAME)
        evidence_anew, moments_anew, converged_anew = fitted(case, method, hyper, CHANGES[change])
        said, tol = f"{method}, {hyper}", TOLERANCE.get(method, TOLERANCE.get(hyper, 1e-6))
        assert converged and converged_anew, said
        np.testing.assert_allclose(evidence_anew, evidence, atol=tol, err_msg=said)
        assert moments and set(moments_anew) == set(moments)
        for (name, key), value in moments.items():
            # In sds; a mode, and what has no spread but for rounding, relative.
            sd, size = np.max(moments.get(("posterior_sd", key), 0.0)), np.max(np.abs(moments[MEANS[name], key]))
            scale = sd if sd > 1e-9 * size else size or 1.0
            off = np.max(np.abs(moments_anew[name, key] - value)) / scale
            assert off < tol, f"{said}: {name} of {key!r} is off by {off:.1e}"


def test_every_method_is_here_or_has_a_reason():
    here = {(type(compiled_form(shared(case.write, SAME)).form), name) for case in CASES for name, _ in fits(case)}
    assert {(method.form, method.name) for method in methods() if method.name not in POSITIONAL} == here
