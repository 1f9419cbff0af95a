"""Posterior of utilities: a Gaussian for each user, given the hyperparameters."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.linalg

from pymc_ep.contracts.posterior import JointDraws, Moments
from pymc_ep.models.preferences.compiled import CompiledPreferences
from pymc_ep.models.preferences.engine.kernels import Kernel, UtilityCovariance
from pymc_ep.models.preferences.engine.users import UserFactors, blocks, factorised
from pymc_ep.models.preferences.engine.values import ComparedUsers, UtilityPrior
from pymc_ep.models.preferences.kernel import difference_moments, precision_losses
from pymc_ep.sites.compiled import compile_site

__all__ = ["PreferencePosterior", "UserPosterior", "joint_draws"]


class UserPosterior(NamedTuple):
    """Posterior of the utilities of one user: mean b + S_o w and covariance S - S_o Q S_o^T, o its compared items.

    Attributes
    ----------
    user : int
    items : ndarray of int, (n,)
    weights : ndarray, (n,)
    loss : ndarray, (n, n)
        Q.
    whitened : ndarray, (n, n)
        Of product whitened whitened^T the posterior covariance of the compared items.
    lower : ndarray, (n, n)
        Cholesky factor of their prior covariance.
    """

    user: int
    items: np.ndarray
    weights: np.ndarray
    loss: np.ndarray
    whitened: np.ndarray
    lower: np.ndarray


@dataclass(frozen=True, eq=False)
class PreferencePosterior:
    """Posterior of all variables of a `Preferences` form; users are independent given the hyperparameters.

    Attributes
    ----------
    form : CompiledPreferences
    theta : ndarray, (p,)
        Unconstrained hyperparameters, which are held.
    compared : ComparedUsers
    users : UserFactors
        Of the users that compared any items.
    """

    form: CompiledPreferences
    theta: np.ndarray
    compared: ComparedUsers
    users: UserFactors

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
        every = np.arange(self.form.n_items)
        return self.covariance.entries(every, every)

    def components(self) -> "Iterator[tuple[float, PreferencePosterior]]":
        """Yield a weight of one and this posterior, as a mixture yields its components."""
        yield 1.0, self

    def portions(self, size: int, rng: np.random.Generator) -> "Iterator[tuple[int, PreferencePosterior]]":
        """Yield a number of draws and this posterior, as a mixture yields what each component has of them."""
        yield size, self

    def hyper_moments(self) -> dict[str, Moments]:
        """Return the hyperparameters, which are held, with standard deviations of zero."""
        return {name: Moments(v, np.zeros_like(v)) for name, v in self.form.constrained(self.theta).items()}

    def each(self, users: np.ndarray) -> Iterator[UserPosterior]:
        """Yield the posteriors of given users, positions among all of the model, in their order."""
        place = {user: k for k, user in enumerate(self.compared.users.tolist())}
        found = self._compared(np.array([place[u] for u in users.tolist() if u in place], dtype=np.int64))
        for user in users.tolist():
            yield next(found)._replace(user=user) if user in place else _unseen(user)

    def moments(self) -> dict[str, Moments]:
        """Return the moments of the utilities of all users."""
        every = np.arange(self.form.n_users)
        mean, variance = np.empty((2, len(every), self.form.n_items))
        for one in self.each(every):
            mean[one.user], variance[one.user] = self.of_user(one)
        shape = self.form.shape
        sd = np.sqrt(np.maximum(variance, 0.0))
        return {self.form.form.utilities: Moments(mean.reshape(shape), sd.reshape(shape))}

    def of_user(self, one: UserPosterior) -> tuple[np.ndarray, np.ndarray]:
        """Return the means and variances of all utilities of a user, (I,) each."""
        own = self.covariance.columns(one.items)
        variance = self._variances - np.einsum("in,in->i", own @ one.loss, own)
        return self.prior.mean + own @ one.weights, variance

    def joint(self, one: UserPosterior) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean, (I,), and covariance, (I, I), of all utilities of a user."""
        own = self.covariance.columns(one.items)
        every = self.covariance.columns(np.arange(self.form.n_items))
        return self.prior.mean + own @ one.weights, every - own @ one.loss @ own.T

    def differences(self, users: np.ndarray, firsts: np.ndarray, seconds: np.ndarray) -> Moments:
        """Return the moments of f_ui - f_uj, (n,) each, for users u and items i and j."""
        mean, variance = self.prior.mean[firsts] - self.prior.mean[seconds], np.empty(len(users))
        order = np.argsort(users, kind="stable")
        distinct, begin = np.unique(users[order], return_index=True)
        for one, here in zip(self.each(distinct), np.split(order, begin[1:])):
            own = self.covariance.block(firsts[here], one.items) - self.covariance.block(seconds[here], one.items)
            mean[here] += own @ one.weights
            prior = self.covariance.differences(firsts[here], seconds[here])
            variance[here] = prior - np.einsum("kn,kn->k", own @ one.loss, own)
        return Moments(mean, np.sqrt(np.maximum(variance, 0.0)))

    def user_draws(self, one: UserPosterior, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return joint draws of all utilities of a user, (size, I).

        Draws of the prior are moved by what the posterior knows of the compared items (Matheron's rule).
        """
        prior, kernel = self._prior
        free = rng.standard_normal((size, prior.factors.shape[1])) @ prior.factors.T
        free += np.sqrt(prior.scale) * kernel.draws(size, rng)
        if not len(one.items):
            return prior.mean + free
        across = self.covariance.columns(one.items)
        own = rng.standard_normal((size, len(one.items))) @ one.whitened.T - free[:, one.items]
        moved = scipy.linalg.cho_solve((one.lower, True), own.T)
        return prior.mean + across @ one.weights + free + (across @ moved).T

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
        every = np.arange(self.form.n_users)
        utilities = np.empty((size, len(every), self.form.n_items))
        for one in self.each(every):
            utilities[:, one.user] = self.user_draws(one, size, rng)
        return utilities

    def _compared(self, places: np.ndarray) -> Iterator[UserPosterior]:
        """Yield the posteriors of users that compared items, given by their places among these."""
        own, items, pairs, _ = self.compared.comparisons.some(places)
        backend = self.form.backend
        weights, precision = self.users.weights[items], self.users.sites.precision[pairs]
        for some, items, pairs in blocks(own):
            lower, zero = factorised(some, self.covariance, backend), np.zeros(len(pairs))
            white = difference_moments(some, lower, zero, zero, precision[pairs], backend=backend).whitened
            losses = precision_losses(some, white, precision[pairs], backend=backend)
            squares = some.square_ends
            for k in range(some.n_users):
                here, (mine, _) = slice(*squares[k : k + 2]), some.of_user(k)
                matrices = (part[here].reshape(some.n_items(k), -1) for part in (losses, white, lower))
                yield UserPosterior(-1, some.items[mine], weights[items[mine]], *matrices)


def joint_draws(
    form: CompiledPreferences,
    compared: ComparedUsers,
    thetas: np.ndarray,
    utilities: np.ndarray,
    *,
    log_likelihood: bool,
) -> JointDraws:
    """Return draws of all variables of a form, given those of theta, (s, p), and of the utilities, (s, U, I)."""
    size, group = len(thetas), form.form.comparisons
    values = {form.form.utilities: utilities.reshape(size, *form.shape)}
    out = values | form.evaluate(thetas, values)
    if not log_likelihood:
        return JointDraws(out, {})
    comparisons, order = compared.comparisons, compared.order
    own = np.repeat(compared.users, np.diff(comparisons.pair_ends))
    first, second = (comparisons.items[places] for places in comparisons.places)
    density, site = np.empty((size, len(order))), compile_site(group.site)
    density[:, order] = site.log_density(np.ones((size, 1)), utilities[:, own, first] - utilities[:, own, second])
    return JointDraws(out, {group.name: density})


def _unseen(user: int) -> UserPosterior:
    """Return the posterior of a user without comparisons, which is the prior."""
    none = np.zeros((0, 0))
    return UserPosterior(user, np.zeros(0, dtype=np.int64), np.zeros(0), none, none, none)
