"""Mirror images of the posterior: exact symmetries of the evidence in signs and columns of hyperparameters.

The covariance W W^T of a coregionalisation is the same for -W, and for W with its columns in another order. With a
group G of maps g that leave Z(theta) as it is, the images of the cell C = {theta: |theta - mode| <= |g theta - mode|
for all g} cover the space, so that

    int Z(theta) p(theta) dtheta = int_C Z(theta) sum_g p(g theta) dtheta.
"""

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from pymc_ep.contracts.evidence import DesignPoint, OwnFit
from pymc_ep.contracts.form import HyperForm
from pymc_ep.evidence.integration.explore import Explorer
from pymc_ep.evidence.integration.frame import Frame
from pymc_ep.evidence.integration.integral import Integral
from pymc_ep.numerics.interpolation.stratified_draws import nearest, stratified

__all__ = ["mirrored"]

_EQUAL = 1e-5
"""Largest difference between a fit and its image: of log evidences, in nats, and of states, relative to their largest
element. It is far above the errors that EP's tolerance leaves, and far below the differences of distinct fits."""
_LIKELY = 10.0
"""Largest drop below the highest density, in nats, of fits at which maps are tried."""
_MOVED = 0.5
"""Least distance, in standard deviations, by which a map must move a fit: a nearer image is part of the same posterior
mass."""
_MOST_TRIED = 12
"""Most maps that are tried, by two fits each at most."""
_MOST_IMAGES = 8
"""Most images that are represented, enough for all signs of three columns: each image has its own fits."""


class _Map(NamedTuple):
    """The map theta -> sign * theta[order], with `order` and `sign`, (p,)."""

    order: np.ndarray
    sign: np.ndarray

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        """Return the images of rows, (..., p)."""
        return self.sign * theta[..., self.order]

    def after(self, first: "_Map") -> "_Map":
        """Return the map that applies `first`, and then this one."""
        # With this map second, s_2 (s_1 theta[o_1])[o_2] = s_2 s_1[o_2] theta[o_1[o_2]].
        return _Map(first.order[self.order], self.sign * first.sign[self.order])

    @property
    def key(self) -> bytes:
        """Key by which equal maps are found."""
        return self.order.tobytes() + self.sign.tobytes()


def mirrored(
    integral: Integral[OwnFit], explorer: Explorer[OwnFit], frame: Frame, rng: np.random.Generator
) -> tuple[Integral[OwnFit], str]:
    """Return the integral with all mirror images of the posterior, and a remark; itself and "" without symmetries."""
    at, form = integral.mode.at, explorer.evidence.form
    tried = islice(_candidates(form), _MOST_TRIED)
    generators = [
        (name, generator) for name, generator in tried if _is_symmetry(generator, integral.points, explorer, frame)
    ]
    if not generators:
        return integral, ""
    group = _closed([generator for _, generator in generators])
    names = ", ".join(dict.fromkeys(name for name, _ in generators))
    if len(group) > _MOST_IMAGES:
        return integral, (
            f"the posterior has more than {_MOST_IMAGES} mirror images, in signs or columns of {names}, of which one "
            f"is returned: their means and standard deviations are of that one, and the evidence is too small"
        )

    def images(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all images of rows theta, (m, p), map by map, and p(g theta) / p(theta) of each; zero outside of C."""
        stacked = np.stack([g(theta) for g in group])
        # Images are (maps, m, p): theta is in C where none is nearer to the mode than the first, theta itself.
        in_cell = np.argmin(((stacked - at.theta) ** 2).sum(axis=-1), axis=0) == 0
        every = np.concatenate(stacked)
        log_prior = form.rows.log_prior(every).reshape(len(group), -1)
        return every, np.where(in_cell, np.exp(log_prior - log_prior[0]), 0.0).ravel()

    thetas, ratios = images(integral.thetas)
    weights = np.tile(integral.theta_weights, len(group)) * ratios
    # Z(g theta) = Z(theta) with g orthogonal: gradients of log Z map as theta does.
    points = [p._replace(theta=g(p.theta), gradient=g(p.gradient)) for g in group for p in integral.points]
    places = np.array([point.theta for point in points])

    def imaged(rows: np.ndarray) -> np.ndarray:
        """Return s draws, (s, p), from the images of equally weighted draws `rows`, (s, p)."""
        every, ratios = images(rows)
        some = frame.z(every[ratios > 0]), ratios[ratios > 0] / ratios.sum()
        return frame.theta(some[0][rng.permutation(stratified(*some, len(rows), rng))])

    draws, components = imaged(integral.draws), integral.components
    if len(components):
        components = imaged(components)
        of_points = np.bincount(nearest(frame.z(draws), frame.z(places)), minlength=len(points)) / len(draws)
    else:
        of_points = np.tile(integral.weights, len(group)) * images(places[: len(integral.points)])[1]
    # int_C Z sum_g p(g theta) = int Z p times the weighted mean of 1_C sum_g p(g theta) / p(theta).
    whole = integral._replace(
        thetas=thetas,
        theta_weights=weights / weights.sum(),
        draws=draws,
        components=components,
        points=points,
        weights=of_points / of_points.sum(),
        log_evidence=integral.log_evidence + float(np.log(weights.sum())),
        evaluations=explorer.evaluations,
    )
    return whole, f"{len(group)} mirror images of the posterior, in signs or columns of {names}, count by their prior"


def _candidates(form: HyperForm) -> Iterator[tuple[str, _Map]]:
    """Yield maps to be tried, each after the name of its hyperparameter, which is untransformed.

    A map changes the sign of one column of the hyperparameter, or exchanges two neighbouring columns.
    """
    places, end = np.arange(form.start.size), 0
    for name, value in zip(form.form.hyper_names, form.unpack(form.start)):
        begin, end = end, end + value.size
        if not value.size or form.transformed[begin]:
            continue
        indices = places[begin:end].reshape(-1, value.shape[-1] if value.ndim > 1 else 1)
        columns = list(indices.T)
        for column in columns:
            yield name, _Map(places, np.where(np.isin(places, column), -1.0, 1.0))
        for first, second in pairwise(columns):
            order = places.copy()
            order[first], order[second] = second, first
            yield name, _Map(order, np.ones(len(places)))


def _is_symmetry(candidate: _Map, points: list[DesignPoint], explorer: Explorer, frame: Frame) -> bool:
    """Whether a map leaves evidence and state unchanged at the likely fit that it moves farthest.

    Near zero a change of sign moves a fit so little that its evidence would be nearly the same in any case.
    """
    likely = [point for point in points if point.value > max(p.value for p in points) - _LIKELY]
    thetas = np.array([point.theta for point in likely])
    moved = ((frame.z(candidate(thetas)) - frame.z(thetas)) ** 2).sum(axis=1)
    at = likely[int(moved.argmax())]
    if moved.max() < _MOVED**2 or (original := explorer.settled(at.theta, at.state)) is None:
        return False
    # Where log-concave sites are those of the image as well, its fit ends where it starts.
    if (image := explorer.settled(candidate(at.theta), original.state)) is None:
        return False
    pairs = zip(image.state, original.state)
    same = all(
        np.allclose(actual, expected, rtol=0.0, atol=_EQUAL * np.abs(expected).max()) for actual, expected in pairs
    )
    return bool(same and abs(image.log_z - original.log_z) < _EQUAL)


def _closed(generators: list[_Map]) -> list[_Map]:
    """Return the group that maps generate, the identity first, but no more than `_MOST_IMAGES` + 1 elements."""
    p = len(generators[0].order)
    group = [_Map(np.arange(p), np.ones(p))]
    seen = {group[0].key}
    for element in group:
        for generator in generators:
            if (new := generator.after(element)).key not in seen and len(group) <= _MOST_IMAGES:
                seen.add(new.key)
                group.append(new)
    return group
