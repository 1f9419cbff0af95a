"""Posterior of utilities given hyperparameters: a Gaussian for each user, which may be corrected for skewness."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.linalg

from pymc_ep.contracts.posterior import JointDraws, Moments
from pymc_ep.models.preferences.compiled import CompiledPreferences
from pymc_ep.models.preferences.engine.expectation import item_differences
from pymc_ep.models.preferences.engine.kernels import Kernel, UtilityCovariance
from pymc_ep.models.preferences.engine.shape import shape_of_users
from pymc_ep.models.preferences.engine.users import UserFactors, blocks, factorised
from pymc_ep.models.preferences.engine.values import ComparedUsers, Sites, UtilityPrior
from pymc_ep.models.preferences.kernel import difference_moments, precision_losses
from pymc_ep.numerics.skewed_normal import limited, skewed_moves
from pymc_ep.sites.compiled import compile_site

__all__ = ["DifferenceShape", "PreferencePosterior", "UserPosterior", "joint_draws"]


class DifferenceShape(NamedTuple):
    """Posterior mean, standard deviation and skewness of differences of utilities, (n,) each."""

    mean: np.ndarray
    sd: np.ndarray
    skewness: np.ndarray


class SkewedPairs(NamedTuple):
    """Comparisons of a user that skew the posterior of its utilities.

    Attributes
    ----------
    firsts, seconds : ndarray of int, (k,)
        The two items of each comparison, as positions among the items that the user compared.
    tilted, total : ndarray, (k,)
        Skewness of the difference of the two utilities: under the tilted distribution, and under the posterior.
    """

    firsts: np.ndarray
    seconds: np.ndarray
    tilted: np.ndarray
    total: np.ndarray


class UserPosterior(NamedTuple):
    """Posterior of the I utilities of one user, with mean b + S_o w and covariance S - S_o Q S_o^T.

    b and S are the prior mean and covariance. S_o, (I, n), has the columns of S at the n items that the user compared.

    Attributes
    ----------
    user : int
        Position of the user among all users.
    items : ndarray of int, (n,)
        Positions of the compared items.
    weights : ndarray, (n,)
        w.
    loss : ndarray, (n, n)
        Q.
    whitened : ndarray, (n, n)
        The posterior covariance of the compared items is whitened whitened^T.
    lower : ndarray, (n, n)
        Cholesky factor of the prior covariance of the compared items.
    skewed : SkewedPairs
        Comparisons that skew the posterior; empty where the posterior is a Gaussian.
    """

    user: int
    items: np.ndarray
    weights: np.ndarray
    loss: np.ndarray
    whitened: np.ndarray
    lower: np.ndarray
    skewed: SkewedPairs

    def with_skewed(self, prior: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return posterior covariances, (d, k), of d variables with k scaled differences, and the scales, (k,).

        The differences are of the pairs in `skewed`; the scale of each is its posterior standard deviation. `prior`,
        (d, n), are the prior covariances of the d variables with the compared items.
        """
        # cov(f, d / s) = S_fo S_oo^-1 C D^T / s, with C = whitened whitened^T = cov(f_o) and s^2 = diag(D C D^T).
        rows = self.whitened[self.skewed.firsts] - self.whitened[self.skewed.seconds]
        sd = np.sqrt(np.einsum("kn,kn->k", rows, rows))
        coefficients = scipy.linalg.cho_solve((self.lower, True), self.whitened @ (rows / sd[:, None]).T)
        return prior @ coefficients, sd


@dataclass(frozen=True, eq=False)
class PreferencePosterior:
    """Posterior of all variables of a `Preferences` form; users are independent given the hyperparameters.

    Attributes
    ----------
    form : CompiledPreferences
    theta : ndarray, (p,)
        Unconstrained hyperparameters, whose uncertainty is not part of this posterior.
    compared : ComparedUsers
    users : UserFactors
        Factors of the users with comparisons.
    shaped : bool
        Whether width and skewness of the utilities are corrected, as they are for EP.
    """

    form: CompiledPreferences
    theta: np.ndarray
    compared: ComparedUsers
    users: UserFactors
    shaped: bool = False

    @property
    def unknowns(self) -> int:
        """Number of unknowns, hyperparameters included."""
        return int(np.prod(self.form.shape)) + self.theta.size

    @cached_property
    def _prior(self) -> tuple[UtilityPrior, Kernel]:
        return self.form.prior(self.theta)

    @property
    def prior(self) -> UtilityPrior:
        """Prior of the utilities at the hyperparameters of the result."""
        return self._prior[0]

    @cached_property
    def covariance(self) -> UtilityCovariance:
        """Prior covariance S of the utilities of a user."""
        prior, kernel = self._prior
        return kernel.covariance(prior)

    @cached_property
    def _variances(self) -> np.ndarray:
        """Prior variances of the utilities of a user, (I,)."""
        items = np.arange(self.form.n_items)
        return self.covariance.entries(items, items)

    def components(self) -> "Iterator[tuple[float, PreferencePosterior]]":
        """Yield a weight of one and this posterior, as a mixture yields its components."""
        yield 1.0, self

    def portions(self, size: int, rng: np.random.Generator) -> "Iterator[tuple[int, PreferencePosterior]]":
        """Yield `size` and this posterior, as a mixture yields each component's number of draws and the component."""
        yield size, self

    def hyper_moments(self) -> dict[str, Moments]:
        """Return the hyperparameters, by name, with sds of zero, as this posterior is conditional on their values."""
        return {name: Moments(v, np.zeros_like(v)) for name, v in self.form.constrained(self.theta).items()}

    def each(self, users: np.ndarray) -> Iterator[UserPosterior]:
        """Yield the posterior of each entry of `users`, (n,), positions among all users, in the order given."""
        place = {user: k for k, user in enumerate(self.compared.users.tolist())}
        posteriors = self._compared(np.array([place[u] for u in users.tolist() if u in place], dtype=np.int64))
        for user in users.tolist():
            yield next(posteriors)._replace(user=user) if user in place else _unseen(user)

    def moments(self) -> dict[str, Moments]:
        """Return means and standard deviations of all utilities, in the model's shape, by the name of the utilities."""
        users = np.arange(self.form.n_users)
        mean, variance = np.empty((2, len(users), self.form.n_items))
        for posterior in self.each(users):
            mean[posterior.user], variance[posterior.user] = self.of_user(posterior)
        shape = self.form.shape
        sd = np.sqrt(np.maximum(variance, 0.0))
        return {self.form.form.utilities: Moments(mean.reshape(shape), sd.reshape(shape))}

    def of_user(self, posterior: UserPosterior) -> tuple[np.ndarray, np.ndarray]:
        """Return the means and variances of all utilities of a user, (I,) each."""
        cross = self.covariance.columns(posterior.items)
        # diag(S - S_o Q S_o^T).
        variance = self._variances - np.einsum("in,in->i", cross @ posterior.loss, cross)
        return self.prior.mean + cross @ posterior.weights, variance

    def joint(self, posterior: UserPosterior) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean, (I,), and covariance, (I, I), of all utilities of a user."""
        cross = self.covariance.columns(posterior.items)
        prior_covariance = self.covariance.columns(np.arange(self.form.n_items))
        return self.prior.mean + cross @ posterior.weights, prior_covariance - cross @ posterior.loss @ cross.T

    def differences(self, users: np.ndarray, firsts: np.ndarray, seconds: np.ndarray) -> DifferenceShape:
        """Return the moments of the differences f_ui - f_uj, for n users u, items i and items j, (n,) each."""
        mean, variance = self.prior.mean[firsts] - self.prior.mean[seconds], np.empty(len(users))
        third = np.zeros(len(users))
        order = np.argsort(users, kind="stable")
        distinct, begin = np.unique(users[order], return_index=True)
        for posterior, rows in zip(self.each(distinct), np.split(order, begin[1:])):
            # With a = e_i - e_j: mean a^T b + a^T S_o w, variance a^T S a - a^T S_o Q S_o^T a.
            cross = self.covariance.block(firsts[rows], posterior.items) - self.covariance.block(
                seconds[rows], posterior.items
            )
            mean[rows] += cross @ posterior.weights
            prior = self.covariance.differences(firsts[rows], seconds[rows])
            variance[rows] = prior - np.einsum("kn,kn->k", cross @ posterior.loss, cross)
            if len(posterior.skewed.tilted):
                # Third central moment of the difference d, to first order: sum_k cov(d, d_k / s_k)^3 h_k.
                third[rows] = posterior.with_skewed(cross)[0] ** 3 @ posterior.skewed.tilted
        sd = np.sqrt(np.maximum(variance, 0.0))
        return DifferenceShape(mean, sd, np.divide(third, sd**3, out=np.zeros_like(sd), where=sd > 0.0))

    def user_draws(self, posterior: UserPosterior, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return joint draws of all utilities of a user, (size, I).

        Draws of the prior are conditioned on posterior draws of the compared items (Matheron's rule). Where comparisons
        skew the posterior, cubics of their differences are then added.
        """
        prior, kernel = self._prior
        # V z + s e ~ N(0, V V^T + s^2 K), with e ~ N(0, K).
        free = rng.standard_normal((size, prior.factors.shape[1])) @ prior.factors.T
        free += np.sqrt(prior.scale) * kernel.draws(size, rng)
        if not len(posterior.items):
            return prior.mean + free
        across = self.covariance.columns(posterior.items)
        # free + S_fo S_oo^-1 (x - free_o), with x = whitened z ~ N(0, cov(f_o | factors)).
        residual = rng.standard_normal((size, len(posterior.items))) @ posterior.whitened.T - free[:, posterior.items]
        moved = scipy.linalg.cho_solve((posterior.lower, True), residual.T)
        effect, skewed = free + (across @ moved).T, posterior.skewed
        if len(skewed.tilted):
            cross, sd = posterior.with_skewed(across)
            # f + sum_k cov(f, u_k) a_k(u_k) for u_k = d_k / s_k, with the cubic a_k of `skewed_moves`.
            u = (effect[:, posterior.items[skewed.firsts]] - effect[:, posterior.items[skewed.seconds]]) / sd
            constant, first, second, third = skewed_moves(*limited(skewed.tilted, skewed.total))
            effect += (((third * u + second) * u + first) * u + constant) @ cross.T
        return prior.mean + across @ posterior.weights + effect

    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False, budget: float = 0.0
    ) -> JointDraws:
        """Return joint draws of all variables of the form, optionally with log likelihoods."""
        thetas = np.tile(self.theta, (size, 1))
        return joint_draws(
            self.form, self.compared, thetas, self.utility_draws(size, rng), log_likelihood=log_likelihood
        )

    def utility_draws(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return joint draws of all utilities of all users, (size, U, I)."""
        users = np.arange(self.form.n_users)
        utilities = np.empty((size, len(users), self.form.n_items))
        for posterior in self.each(users):
            utilities[:, posterior.user] = self.user_draws(posterior, size, rng)
        return utilities

    def _compared(self, places: np.ndarray) -> Iterator[UserPosterior]:
        """Yield the posterior of each user in `places`, (n,), positions among the users with comparisons."""
        comparisons, items, pairs, _ = self.compared.comparisons.some(places)
        backend, site = self.form.backend, compile_site(self.form.form.comparisons.site)
        weights, sites = self.users.weights[items], Sites(*(array[pairs] for array in self.users.sites))
        for block, items, pairs in blocks(comparisons):
            lower = factorised(block, self.covariance, backend)
            mean = item_differences(block, self.prior.mean[block.items])
            shift, precision = (array[pairs] for array in sites)
            differences = difference_moments(block, lower, mean, shift, precision, backend=backend)
            skewness = np.zeros((2, len(shift)))
            if self.shaped:
                shape = shape_of_users(block, differences, Sites(shift, precision), site)
                skewness = np.array(shape[:2])
                shift, precision = shift + shape.shift, precision + shape.precision
                if shape.precision.any():
                    differences = difference_moments(block, lower, mean, shift, precision, backend=backend)
            losses = precision_losses(block, differences.whitened, precision, backend=backend)
            squares = block.square_ends
            for k in range(block.n_users):
                entries, (item_slice, pair_slice) = slice(*squares[k : k + 2]), block.of_user(k)
                loss, white, root = (
                    array[entries].reshape(block.n_items(k), -1) for array in (losses, differences.whitened, lower)
                )
                skewed = pair_slice.start + np.flatnonzero(skewness[0, pair_slice])
                of_pairs = SkewedPairs(block.firsts[skewed], block.seconds[skewed], *skewness[:, skewed])
                yield UserPosterior(
                    -1, block.items[item_slice], weights[items[item_slice]], loss, white, root, of_pairs
                )


def joint_draws(
    form: CompiledPreferences,
    compared: ComparedUsers,
    thetas: np.ndarray,
    utilities: np.ndarray,
    *,
    log_likelihood: bool,
) -> JointDraws:
    """Return draws of all variables of a form, given s draws of theta, (s, p), and of the utilities, (s, U, I)."""
    size, group = len(thetas), form.form.comparisons
    values = {form.form.utilities: utilities.reshape(size, *form.shape)}
    out = values | form.evaluate(thetas, values)
    if not log_likelihood:
        return JointDraws(out, {})
    comparisons, order = compared.comparisons, compared.order
    users = np.repeat(compared.users, np.diff(comparisons.pair_ends))
    first, second = (comparisons.items[places] for places in comparisons.places)
    density, site = np.empty((size, len(order))), compile_site(group.site)
    density[:, order] = site.log_density(np.ones((size, 1)), utilities[:, users, first] - utilities[:, users, second])
    return JointDraws(out, {group.name: density})


def _unseen(user: int) -> UserPosterior:
    """Return the posterior of a user without comparisons, which is the prior."""
    square, none, places = np.zeros((0, 0)), np.zeros(0), np.zeros(0, dtype=np.int64)
    return UserPosterior(user, places, none, square, square, square, SkewedPairs(places, places, none, none))
