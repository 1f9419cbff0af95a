"""Observations that share a predictor, as one site of expectation propagation.

Outside of a fit each observation has a site of its own. The product of these sites is the site of the predictor, so
that the posterior is the same.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pytensor

from pymc_ep.contracts.form import CompiledSiteForm
from pymc_ep.engines.prior import Prior, perturbed
from pymc_ep.evidence.ep.sweep import Problem, group_slices
from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.sites.compiled import CompiledSite, compile_site
from pymc_ep.sites.repeated import is_additive, repeated
from pymc_ep.sites.rows_of_many import number_of_rows

__all__ = ["RepeatedGroup", "Repeats", "repeats_at"]

_FEW = 2
"""Most observations of one predictor that keep separate sites, where moments have a closed form for a single
observation and none for several together. Quadrature takes ten times as long, and EP's error with two sites is
small."""
_WORK_IN_C, _WORK_IN_NUMBA, _OF_CALLS = 40_000, 150_000, 600
"""Number of fits times (m + `_OF_CALLS`), for m predictors, from which a compiled loop for the moments saves time over
NumPy: in C, and in Numba. `_OF_CALLS` is the number of predictors whose moments take as long as the overhead of NumPy's
calls."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
"""Factor of a multiplicative hash (Knuth 1998, section 6.4): 2^64 over the golden ratio, rounded to an odd number."""


class _Others(NamedTuple):
    """Observations that remain at a predictor when one is left out, in each of k cases; equal ones are one case.

    Attributes
    ----------
    several : ndarray of int, (s,)
        Indices of the observations that share a predictor.
    place : ndarray of int, (s,)
        Index of the case in which each of `several` is left out.
    owner : ndarray of int, (k,)
        Predictor of each case.
    observed : ndarray, (k,)
        Average of the remaining observations.
    parameters : tuple of ndarray, (k,)
        Parameters of the site of the remaining observations.
    """

    several: np.ndarray
    place: np.ndarray
    owner: np.ndarray
    observed: np.ndarray
    parameters: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class RepeatedGroup:
    """The n observations of one variable, and their m distinct predictors.

    Attributes
    ----------
    single : CompiledSite
        Site of one observation.
    y : ndarray, (n,)
    owner : ndarray of int, (n,)
        Index of the predictor of each observation.
    first : ndarray of int, (m,)
        Index of the first observation of each predictor.
    """

    single: CompiledSite
    y: np.ndarray
    owner: np.ndarray
    first: np.ndarray

    @cached_property
    def repeats(self) -> bool:
        """Whether any two observations share a predictor."""
        return len(self.first) < len(self.owner)

    @cached_property
    def count(self) -> np.ndarray:
        """Number of observations of each predictor, (m,)."""
        return np.bincount(self.owner, minlength=len(self.first)).astype(float)

    @cached_property
    def site(self) -> CompiledSite:
        """Site of all observations of a predictor: of their average, with their number as a parameter."""
        if not self.repeats:
            return self.single
        single = self.single
        return compile_site(repeated(single.site), single.mode, loop=single.loop, **single.options)

    @cached_property
    def observed(self) -> np.ndarray:
        """Observations of `site`, (m,): the average of each predictor's observations."""
        return self._sums(self.y) / self.count if self.repeats else self.y

    def for_fits(self, fits: int) -> "RepeatedGroup":
        """Return the group with a compiled loop for its moments, if NumPy computes them and `fits` fits repay it.

        Work is counted, not timed, so that a fit does not depend on the machine's load or on earlier fits.
        """
        single, least = self.single, _WORK_IN_C if pytensor.config.cxx else _WORK_IN_NUMBA
        if not single.site.interpreted or fits * (len(self.first) + _OF_CALLS) < least:
            return self
        return replace(self, single=compile_site(single.site, single.mode, loop=True, **single.options))

    def subset(self, index: np.ndarray) -> "RepeatedGroup":
        """Return the group of the observations with given indices."""
        _, first, owner = np.unique(self.owner[index], return_index=True, return_inverse=True)
        return RepeatedGroup(self.single, self.y[index], owner, first)

    def shares(
        self, values: Sequence[Array], mean: np.ndarray, shift: np.ndarray, precision: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return shift and precision, (n,) each, of a site for each observation; their products are the given sites.

        `mean`, `shift` and `precision`, (m,), are the predictors' posterior means and sites, and `values` the
        observations' parameters, (n,) each. Observations of a predictor have equal precisions. The slope of a site at
        the posterior mean is the slope of the observation's log density, plus an equal share of the remainder.
        """
        if not self.repeats:
            return shift, precision
        centre, share = mean[self.owner], (precision / self.count)[self.owner]
        slope = np.asarray(self.single.slope(self.y, centre, *values), dtype=float)
        slope = np.where(np.isfinite(slope), slope, 0.0)
        left = (shift - precision * mean - self._sums(slope)) / self.count
        # b_i = a_i + (pi / k) m, where the slopes a_i add up to b - pi m: then sum_i b_i = b.
        return slope + left[self.owner] + share * centre, share

    def parameters(self, values: Sequence[Array]) -> tuple[Array, ...]:
        """Return the parameters of `site`, (m,) each, from the observations' parameters, (n,) each."""
        if not self.repeats:
            return tuple(values)
        constant = self._constant(values) if values else self._only_constant
        return self.count, constant, *self._common(values)

    def parameter_gradient(
        self, values: Sequence[Array], mean: Array, variance: Array, power: float
    ) -> tuple[Array, ...]:
        """Return the derivatives of log Z / power in the parameters of the observations, (n,) each.

        They include the derivative of the constant of `site`: the sum of the log densities of a predictor's k
        observations, less k times the log density of their average.

        Parameters
        ----------
        values : sequence of array, (n,)
            Parameters of the observations.
        mean, variance : array, (m,)
            Cavity moments.
        power : float
        """
        if not self.repeats:
            return tuple(g / power for g in self.single.parameter_gradient(self.y, mean, variance, power, *values))
        common = self._common(values)
        eta, powers = self._reference(common), power * self.count
        # A site with parameters takes averages, so that its power is the site of all.
        moved = self.single.parameter_gradient(self.observed, mean, variance, powers, *common)
        # dc = d log t(eta; y_i) - d log t(eta; mean y), beside the tilted mean E[d log t(f; mean y)].
        at_average = self.single.parameter_slopes(self.observed, eta, *common)
        slopes = self.single.parameter_slopes(self.y, eta[self.owner], *values)
        return tuple(
            np.asarray(slope) + (np.asarray(g) / powers - np.asarray(average))[self.owner]
            for slope, g, average in zip(slopes, moved, at_average)
        )

    def left_out(
        self, values: Sequence[Array], mean: np.ndarray, variance: np.ndarray, log_z: np.ndarray
    ) -> np.ndarray:
        """Return log p(y_i | y_-i), (n,), from the cavities and log normalisers of `site`, (m,) each.

        It is `log_z` less the log normaliser of the predictor's other observations, which have a site of the same kind.
        """
        if not self.repeats:
            return log_z
        out = log_z[self.owner]
        others = self._others(values) if values else self._only_others
        safe = np.where(variance > 0, variance, 1.0)[others.owner]
        without = self.site.moments(others.observed, mean[others.owner], safe, 1.0, *others.parameters).log_z
        out[others.several] -= np.asarray(without)[others.place]
        return out

    def _constant(self, values: Sequence[Array]) -> np.ndarray:
        """Return ``log_constant`` of `site`, (m,): the excess of summed log densities over the density of averages."""
        common = self._common(values)
        each, eta = self._log_densities(values, common)
        # c = sum_i log t(eta; y_i) - k log t(eta; mean y), at any eta.
        return self._sums(each) - np.asarray(self.site.log_density(self.observed, eta, self.count, 0.0, *common))

    @cached_property
    def _only_constant(self) -> np.ndarray:
        return self._constant(())

    def _others(self, values: Sequence[Array]) -> "_Others":
        """Return the observations that remain at each predictor when one of them is left out."""
        several = np.flatnonzero(self.count[self.owner] > 1)
        key = hashed([self.owner.astype(float), self.y, *(np.asarray(value) for value in values)])
        _, index, place = np.unique(key[several], return_index=True, return_inverse=True)
        representatives = several[index]
        owner = self.owner[representatives]
        left = self.count[owner] - 1.0
        low, high = self._extremes
        # Rounding of the sum must not lead beyond what there is.
        average = np.clip((self._sums(self.y)[owner] - self.y[representatives]) / left, low[owner], high[owner])
        parameters = [
            (self._sums(value)[owner] - np.asarray(value)[representatives]) / left
            if name in (self.single.site.additive or ())
            else np.asarray(value)[representatives]
            for name, value in zip(self.single.site.parameters, values)
        ]
        each, eta = self._log_densities(values, self._common(values))
        together = np.asarray(self.site.log_density(average, eta[owner], left, 0.0, *parameters))
        constant = self._sums(each)[owner] - each[representatives] - together
        return _Others(several, place, owner, average, (left, constant, *parameters))

    @cached_property
    def _only_others(self) -> "_Others":
        return self._others(())

    def _sums(self, values: Array) -> np.ndarray:
        """Return the sums over the observations of each predictor, (m,), of values, (n,)."""
        return np.bincount(self.owner, np.asarray(values, dtype=float), minlength=len(self.first))

    @cached_property
    def _extremes(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and largest observation of each predictor, (m,) each."""
        order = np.argsort(self.owner, kind="stable")
        starts = np.searchsorted(self.owner[order], np.arange(len(self.first)))
        return np.minimum.reduceat(self.y[order], starts), np.maximum.reduceat(self.y[order], starts)

    def _common(self, values: Sequence[Array]) -> list[np.ndarray]:
        """Return the parameters of each predictor, (m,) each: averages, or the value common to all its observations."""
        site = self.single.site
        return [
            self._sums(value) / self.count if name in (site.additive or ()) else np.asarray(value)[self.first]
            for name, value in zip(site.parameters, values)
        ]

    def _reference(self, common: Sequence[np.ndarray]) -> np.ndarray:
        """Return a value of each predictor, (m,), at which the densities of its observations are not small."""
        return np.broadcast_to(self.single.site.typical(self.observed, *common)[0], self.observed.shape)

    def _log_densities(self, values: Sequence[Array], common: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities of the observations, (n,), at `_reference` of their predictors, and that, (m,)."""
        eta = self._reference(common)
        return np.asarray(self.single.log_density(self.y, eta[self.owner], *values)), eta


@dataclass(frozen=True)
class JointGroup(RepeatedGroup):
    """The n observations of a variable with several predictors each, in r rows: `y` and `owner` are (r n,).

    There is a row for each predictor, and for the sum of each two. No two rows are merged, so that `first` is (r n,) as
    well. Parameters have one value for each observation, (n,).
    """

    def subset(self, index: np.ndarray) -> "JointGroup":
        """Return the group of the rows with given indices, which must be all rows of some observations."""
        rows = np.arange(len(index))
        return JointGroup(self.single, self.y[index], rows, rows)

    def parameters(self, values: Sequence[Array]) -> tuple[Array, ...]:
        """Return the parameters of the rows, (r n,) each, from the observations' parameters, (n,) each."""
        return tuple(np.tile(np.asarray(value), number_of_rows(self.single.site.predictors)) for value in values)

    def parameter_gradient(
        self, values: Sequence[Array], mean: Array, variance: Array, power: float
    ) -> tuple[Array, ...]:
        """Return the derivatives of log Z / power in the parameters of the observations, (n,) each."""
        gradients = self.single.parameter_gradient(self.y, mean, variance, power, *self.parameters(values))
        return tuple(g / power for g in gradients)


@dataclass(frozen=True)
class Repeats:
    """The predictors of n observations, m of them distinct, by groups.

    Attributes
    ----------
    groups : tuple of RepeatedGroup
        One for each factor of the form.
    """

    groups: tuple[RepeatedGroup, ...]

    @cached_property
    def any(self) -> bool:
        """Whether any two of the n observations share a predictor."""
        return any(group.repeats for group in self.groups)

    @cached_property
    def first(self) -> np.ndarray:
        """Index of the first observation of each predictor, (m,)."""
        starts = np.cumsum([0, *(len(group.owner) for group in self.groups)])
        return np.concatenate([start + group.first for start, group in zip(starts, self.groups)])

    @cached_property
    def owner(self) -> np.ndarray:
        """Index of the predictor of each observation, (n,)."""
        starts = np.cumsum([0, *(len(group.first) for group in self.groups)])
        return np.concatenate([start + group.owner for start, group in zip(starts, self.groups)])

    @cached_property
    def _count(self) -> np.ndarray:
        return np.bincount(self.owner).astype(float)

    @property
    def sites(self) -> list[CompiledSite]:
        """The site of each factor."""
        return [group.site for group in self.groups]

    def for_fits(self, fits: int) -> "Repeats":
        """Return the same with compiled loops for moments in the groups where `fits` fits repay the compilation."""
        return Repeats(tuple(group.for_fits(fits) for group in self.groups))

    def problem(self, prior: Prior) -> Problem:
        """Return the problem of the distinct predictors."""
        observed = tuple(group.observed for group in self.groups)
        parameters = tuple(group.parameters(values) for group, values in zip(self.groups, prior.parameters))
        if not self.any:
            return Problem(prior.mean, prior.gaussian, observed, parameters)
        return Problem(prior.mean[self.first], prior.gaussian.subset(self.first), observed, parameters)

    def together(self, values: np.ndarray) -> np.ndarray:
        """Return the sums over the observations of each predictor, (m,), of values, (n,)."""
        return np.bincount(self.owner, values) if self.any else values

    def sites_of_each(
        self, parameters: Sequence[Sequence[Array]], mean: Array, shift: np.ndarray, precision: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return shift and precision of each observation's site, (n,) each, from the predictors' sites, (m,) each.

        `mean`, (m,), are the predictors' posterior means, and `parameters` the observations', by group.
        """
        if not self.any:
            return shift, precision
        ends = np.cumsum([len(group.first) for group in self.groups])[:-1]
        groups = zip(
            self.groups, parameters, *(np.split(np.asarray(field), ends) for field in (mean, shift, precision))
        )
        shares = [group.shares(values, *fields) for group, values, *fields in groups]
        shift, precision = (np.concatenate(field) for field in zip(*shares))
        return shift, precision

    def shared(self, values: Array) -> np.ndarray:
        """Return for each observation an equal share, (n,), of the value of its predictor, (m,)."""
        return (np.asarray(values) / self._count)[self.owner] if self.any else np.asarray(values)

    def each(self, values: Array) -> np.ndarray:
        """Return values of the predictor of each observation, (n,), from values of the predictors, (m,)."""
        return np.asarray(values)[self.owner] if self.any else np.asarray(values)

    def cotangents(self, prior: Prior, mean: Array, array: np.ndarray | None) -> tuple[Array, np.ndarray | None]:
        """Return a function's gradients in the mean, (n,), and in the array of `prior`.

        `mean`, (m,), and `array` are its gradients in the prior of the m distinct predictors. The array of a prior is
        the one in which its method `cotangent` is the derivative, such as a covariance; its gradient is None where it
        is constant.
        """
        if not self.any:
            return mean, array
        whole = np.zeros(len(self.owner))
        whole[self.first] = np.asarray(mean)
        return whole, None if array is None else prior.gaussian.cotangent_of_subset(self.first, array)


def repeats_at(form: CompiledSiteForm, theta: np.ndarray, prior: Prior) -> Repeats:
    """Return the `Repeats` of a form: predictors equal at theta, (p,), and at a point nearby count as one."""

    def priors() -> Iterator[Prior]:
        yield prior
        if theta.size:
            yield form.prior(perturbed(theta))

    try:
        return repeats_of(form.sites, form.residuals(), priors())
    except np.linalg.LinAlgError:
        # Nothing is known of other hyperparameters.
        return repeats_of(form.sites, form.residuals(), ())


def repeats_of(sites: Sequence[CompiledSite], observed: Sequence[np.ndarray], priors: Iterable[Prior]) -> Repeats:
    """Return the `Repeats` of observations: predictors that are equal under all given priors count as one.

    Parameters
    ----------
    sites : sequence of CompiledSite
    observed : sequence of ndarray, (n,)
        Observations of each factor.
    priors : iterable of Prior
        Priors at different hyperparameters: predictors that are equal under two of them are equal by the structure of
        the model. The second prior is not computed if no predictors are equal under the first.
    """
    slices = group_slices(observed)
    kinds = (JointGroup if site.site.predictors > 1 else RepeatedGroup for site in sites)
    alone = [of(site, y, np.arange(len(y)), np.arange(len(y))) for of, site, y in zip(kinds, sites, observed)]
    columns: dict[int, list[np.ndarray]] = {k: [] for k, site in enumerate(sites) if is_additive(site.site)}
    grouped: dict[int, RepeatedGroup] = {}
    for prior in priors if columns else ():
        if (signatures := prior.gaussian.signatures()) is None:
            break
        for k, site_columns in columns.items():
            site, rows = sites[k].site, slices[k]
            values = zip(site.parameters, prior.parameters[k])
            site_columns += [*signatures[rows].T, np.asarray(prior.mean)[rows]]
            site_columns += [np.asarray(value) for name, value in values if name not in (site.additive or ())]
            first, owner = _distinct(site_columns)
            grouped[k] = RepeatedGroup(sites[k], observed[k], owner, first)
        if not any(group.repeats for group in grouped.values()):
            break
    return Repeats(tuple(_worthwhile(grouped[k]) or group if k in grouped else group for k, group in enumerate(alone)))


def _worthwhile(group: RepeatedGroup) -> RepeatedGroup | None:
    """Return the group; None without repeats, or with a closed form that merging at most `_FEW` sites would lose."""
    site = group.single.site
    closed_alone = site.tilted is not None and not site.any_power
    return None if not group.repeats or (closed_alone and group.count.max() <= _FEW) else group


def hashed(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return a hash of 64 bits, (n,), of each row of a table whose columns are doubles, (n,) each."""
    out = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        # Adding zero makes -0.0 the same as 0.0.
        out ^= np.ascontiguousarray(column + 0.0).view(np.uint64)
        out *= _MIX
        out ^= out >> np.uint64(29)
    return out


def _distinct(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first index of each set of equal rows, (m,), ascending, and the index of each row's set, (n,)."""
    _, first, owner = np.unique(hashed(columns), return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    first, owner = first[order], place[owner]
    same = all(np.array_equal(column, column[first][owner]) for column in columns)
    return (first, owner) if same else (np.arange(len(owner)), np.arange(len(owner)))
