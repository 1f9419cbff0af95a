"""Posterior of paired symbols: independent Gaussians, Dirichlet popularities, Gamma precisions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import expit, log_expit

from pymc_ep.contracts.posterior import JointDraws, Moments
from pymc_ep.distributions.pair_data import as_counts
from pymc_ep.models.paired_symbols.compiled import CompiledPairedSymbols
from pymc_ep.models.paired_symbols.engine.values import GammaFactor, PairedPrior, Popularity
from pymc_ep.models.paired_symbols.kernel import Symbols
from pymc_ep.numerics.quadrature.logistic import log_mean_sigmoid

__all__ = ["PairedSymbolsPosterior"]

_MOST_OPERATIONS = 1e9
"""Largest number of multiplications for log likelihoods of draws, about a second: each draw needs all I J cells."""


@dataclass(frozen=True, eq=False)
class PairedSymbolsPosterior:
    """Posterior of all variables of a `PairedSymbolsForm`: independent factors at one value of the hyperparameters.

    Attributes
    ----------
    form : CompiledPairedSymbols
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    symbols, popularities : pair
        Posteriors of users and of items; the same object twice where both sides are the same symbols.
    gammas : tuple of GammaFactor
        Posteriors of the learned precisions.
    xi : float
        Parameter xi* of the bound of the logistic function in cells without observed pairs.
    constant : bool
        Whether preferences were left out of the posteriors of censored symbols.
    n_censored : float
        Number D' of censored pairs.
    log_normalisers : pair of float
        Log sums, over users and over items, of the unnormalised posterior of a censored symbol.
    calibration : tuple of float, optional
        Smoothing k and exponent c of popularities, and exponent d of mean preferences, of calibrated predictions.
    """

    form: CompiledPairedSymbols
    theta: np.ndarray
    symbols: tuple[Symbols, Symbols]
    popularities: tuple[Popularity, Popularity]
    gammas: tuple[GammaFactor, ...]
    xi: float
    constant: bool
    n_censored: float
    log_normalisers: tuple[float, float]
    calibration: tuple[float, ...] | None = None

    @property
    def unknowns(self) -> int:
        """Number of unknowns, hyperparameters included."""
        return sum(moments.mean.size for moments in self.moments().values()) + self.theta.size

    @cached_property
    def prior(self) -> PairedPrior:
        """The prior at the hyperparameters of the result."""
        return self.form.prior(self.theta)

    def components(self) -> Iterator[tuple[float, "PairedSymbolsPosterior"]]:
        """Yield weight one and the posterior itself, as a mixture of one component."""
        yield 1.0, self

    def hyper_moments(self) -> dict[str, Moments]:
        """Return the constrained hyperparameters at `theta`, by name, with standard deviations of zero."""
        return {name: Moments(v, np.zeros_like(v)) for name, v in self.form.constrained(self.theta).items()}

    def moments(self) -> dict[str, Moments]:
        """Return the moments of matrices, biases, popularities and learned precisions, by name."""
        out = {}
        for side, symbols, popularity in zip(self.form.form.sides, self.symbols, self.popularities):
            for entries, mean, variance in ((side.factors, *symbols[:2]), (side.bias, *symbols[2:])):
                if entries.name:
                    out[entries.name] = Moments(mean.astype(float), np.sqrt(variance.astype(float)))
            total = popularity.concentration.sum()
            # Dirichlet: E p_i = alpha_i / A, Var p_i = E p_i (1 - E p_i) / (A + 1), A = sum_i alpha_i.
            mean = popularity.concentration / total
            out[side.popularity] = Moments(mean, np.sqrt(mean * (1.0 - mean) / (total + 1.0)))
        for precision, gamma in zip(self.form.form.precisions, self.gammas):
            out[precision.name] = Moments(gamma.shape / gamma.rate, np.sqrt(gamma.shape) / gamma.rate)
        return out

    def preferences(self, side: int, indices: np.ndarray) -> Moments:
        """Return mean and sd, (k, J), of the preferences a_ij of k symbols of a side for all symbols of the other."""
        rows, other = (Symbols(*(array.astype(float) for array in symbols)) for symbols in self._from(side, indices))
        mean = rows.mean @ other.mean.T + rows.bias[:, None] + other.bias
        # Var a = sum_k (Var u_k E v_k^2 + (E u_k)^2 Var v_k) + Var b_i + Var b_j.
        variance = rows.variance @ (other.mean**2 + other.variance).T + rows.mean**2 @ other.variance.T
        return Moments(mean, np.sqrt(variance + rows.bias_variance[:, None] + other.bias_variance))

    def log_probabilities(self, side: int, indices: np.ndarray) -> np.ndarray:
        """Return log p(other symbol | own symbol), (k, J), of the next observed pair (Paquet et al. 2014, eq. 5)."""
        return self.log_probabilities_of(side, indices, *self.preferences(side, indices))

    def log_probabilities_of(self, side: int, indices: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
        """Return `log_probabilities` of k symbols, (k, J), given mean and sd of their preferences, (k, J) each."""
        log_p = log_mean_sigmoid(mean, sd)
        # Expected popularities of a Dirichlet are proportional to its concentrations.
        log_p += np.log(self.popularities[1 - side].concentration)
        self.leave_out_own(indices, log_p)
        largest = log_p.max(axis=1, keepdims=True)
        return log_p - largest - np.log(np.exp(log_p - largest).sum(axis=1, keepdims=True))

    def leave_out_own(self, indices: np.ndarray, scores: np.ndarray) -> None:
        """Write -inf into `scores`, (k, J), for pairs of a symbol with itself where both sides are the same."""
        if self.form.form.alike:
            scores[np.arange(len(indices)), indices] = -np.inf

    def calibrated_scores(self, mean: np.ndarray) -> np.ndarray:
        """Return log probabilities, (n, J), of the items of n users' next pairs, up to a constant of each user.

        They are c log(beta_j + k) + d E a_ij, with the concentrations beta, (J,), and `mean`, E a, (n, J).

        Raises
        ------
        ValueError
            If the fit was not calibrated.
        """
        if self.calibration is None:
            raise ValueError("The fit was not calibrated; fit with calibrate=True.")
        # log (beta_j + k)^c exp(d E a_ij).
        smoothing, popularity, preference = self.calibration
        return popularity * np.log(self.popularities[1].concentration + smoothing) + preference * mean

    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False, budget: float = 0.0
    ) -> JointDraws:
        """Return `size` joint draws of all variables of the form, optionally with log likelihoods.

        Log likelihoods are left out if they need more multiplications than `budget` and more than 1e9, about a second.
        """
        values, form = {}, self.form.form
        for side, symbols, popularity in zip(form.sides, self.symbols, self.popularities):
            for entries, mean, variance in ((side.factors, *symbols[:2]), (side.bias, *symbols[2:])):
                if entries.name:
                    values[entries.name] = mean + np.sqrt(variance) * rng.standard_normal((size, *mean.shape))
            values[side.popularity] = rng.dirichlet(popularity.concentration, size=size)
        for precision, gamma in zip(form.precisions, self.gammas):
            values[precision.name] = rng.gamma(gamma.shape, size=(size, *np.shape(gamma.shape))) / gamma.rate
        out = values | self.form.evaluate(np.tile(self.theta, (size, 1)), values)
        n_users, n_items, width = self.form.shapes
        if not log_likelihood:
            return JointDraws(out, {})
        if float(size) * n_users * n_items * width > max(_MOST_OPERATIONS, budget):
            why = f"each takes all {n_users} x {n_items} cells of a draw"
            return JointDraws(out, {}, None, None, why)
        density = np.array([self._log_likelihood({name: v[k] for name, v in values.items()}) for k in range(size)])
        return JointDraws(out, {form.pairs.name: density})

    def _log_likelihood(self, values: Mapping[str, np.ndarray]) -> float:
        """Return the log density of the observed pairs, given one draw of all variables, by name."""
        i, j, counts = as_counts(self.form.observed()[0])
        form = self.form.form
        users, items = form.users, form.items
        biases = [
            values[side.bias.name] if side.bias.name else symbols.bias
            for side, symbols in zip((users, items), self.symbols)
        ]
        a = values[users.factors.name] @ values[items.factors.name].T + biases[0][:, None] + biases[1]
        pi, psi = values[users.popularity], values[items.popularity]
        observed, left_out = log_expit(a[i, j]) + np.log(pi[i]) + np.log(psi[j]), expit(-a)
        if form.alike:
            # Pairs {i, j} have the factor 2, and pairs {i, i} are always censored.
            observed += np.log(2.0)
            np.fill_diagonal(left_out, 1.0)
        # sum c_ij log(pi_i psi_j sig(a_ij)) + D' log sum_ij pi_i psi_j sig(-a_ij).
        return float(counts @ observed + self.n_censored * np.log(pi @ left_out @ psi))

    def with_symbols(self, side: int, symbols: Symbols) -> "PairedSymbolsPosterior":
        """Return the posterior with `symbols` on one side, to which the fitted rows' popularities do not apply."""
        both = list(self.symbols)
        both[side] = symbols
        return replace(self, symbols=(both[0], both[1]))

    def _from(self, side: int, indices: np.ndarray) -> tuple[Symbols, Symbols]:
        symbols, other = self.symbols[side], self.symbols[1 - side]
        return Symbols(*(array[indices] for array in symbols)), other
