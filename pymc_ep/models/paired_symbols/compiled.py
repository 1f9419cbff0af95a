"""Compiled functions of models of paired symbols: data, prior and expected log prior as arrays."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.traversal import ancestors

from pymc_ep.distributions.pair_data import as_counts, require_others
from pymc_ep.engines.checkpoint import digest
from pymc_ep.exceptions import InvalidDataError
from pymc_ep.graphs.hyper_functions import DrawFunctions
from pymc_ep.models.paired_symbols.engine.values import Block, GammaFactor, PairCounts, PairedPrior, Side
from pymc_ep.models.paired_symbols.form import GaussianEntries, PairedSymbolsForm
from pymc_ep.models.paired_symbols.kernel import Symbols
from pymc_ep.modes import bodies_of, mode_of, numpy_mode

__all__ = ["CompiledPairedSymbols"]


class CompiledPairedSymbols(DrawFunctions):
    """Compiled functions of a `PairedSymbolsForm`.

    Parameters
    ----------
    form : PairedSymbolsForm
    hyper_start : sequence of ndarray
        Unconstrained values of the hyperparameters at PyMC's initial point, for their shapes.
    compile_kwargs : dict, optional
        Keywords of `pytensor.function`; their mode chooses the engine's backend. The form's functions run on NumPy.
    """

    form: PairedSymbolsForm
    most_draws = 1000
    """Default number of draws in a chain: trades off Monte Carlo error against memory for both matrices."""

    def __init__(self, form: PairedSymbolsForm, hyper_start: Sequence[np.ndarray], compile_kwargs: dict | None = None):
        self.form = form
        self.backend = bodies_of(mode_of(compile_kwargs))
        self._kwargs = {"on_unused_input": "ignore", "mode": numpy_mode()}
        self.restart(hyper_start)

    def observed(self) -> list[np.ndarray]:
        """Return the present observations, a list of one array: pairs, (D, 2), or user, item and count, (n, 3)."""
        return [np.asarray(self._data()[0])]

    @property
    def shapes(self) -> tuple[int, int, int]:
        """Numbers of users, items and factors."""
        prior = self.prior(self.start)
        (n_users, width), (n_items, other) = prior.users.factors.mean.shape, prior.items.factors.mean.shape
        if width != other:
            users, items = self.form.users.factors.name, self.form.items.factors.name
            raise InvalidDataError(f"{users!r} and {items!r} have {width} and {other} columns; give both as many.")
        return n_users, n_items, width

    @property
    def work(self) -> float:
        """Number of multiplications, I K^2, of a sum of K x K moments over the I symbols of the longer side."""
        n_users, n_items, width = self.shapes
        return float(max(n_users, n_items)) * width**2

    def pairs(self) -> PairCounts:
        """Return the pairs in the present data, each in both orders where both sides are the same symbols.

        Raises
        ------
        InvalidDataError
            For indices out of range, negative counts, symbols paired with themselves where both sides are the same
            symbols, and if there are no pairs.
        """
        users, items, counts = as_counts(self.observed()[0])
        name, shape = self.form.pairs.name, self.shapes[:2]
        whats = ("symbol", "symbol") if self.form.alike else ("user", "item")
        for what, index, side, n in zip(whats, (users, items), (self.form.users, self.form.items), shape):
            bad = (index < 0) | (index >= n)
            if bad.any():
                k = int(np.argmax(bad))
                raise InvalidDataError(
                    f"{name!r} has the {what} {index[k]} at row {k}, but {side.factors.name!r} has rows 0 to {n - 1}; "
                    f"correct that index, or give {side.factors.name!r} more rows."
                )
        if (counts < 0).any():
            k = int(np.argmax(counts < 0))
            raise InvalidDataError(f"{name!r} has the count {counts[k]} at row {k}; counts are at least 0.")
        if not counts.sum():
            raise InvalidDataError(
                f"{name!r} has no pairs; observe at least one, or name the files that they are in by fit(partitions=)."
            )
        if self.form.alike:
            require_others(name, self.observed()[0])
            users, items, counts = np.append(users, items), np.append(items, users), np.append(counts, counts)
        return PairCounts.of(users, items, counts, shape)

    def prior(self, theta: np.ndarray) -> PairedPrior:
        """Return the prior at unconstrained hyperparameters `theta`, (p,)."""
        log_prior, ratio, *rest = (np.asarray(output) for output in self._prior(*self.unpack(theta)))
        values = iter(rest)
        sides = []
        for side in self.form.sides:
            factors, bias = (
                Block(next(values), next(values), entries.learned) for entries in (side.factors, side.bias)
            )
            sides.append(Side(factors, bias, next(values)))
        gammas = tuple(GammaFactor(next(values), next(values)) for _ in self.form.precisions)
        for entries, block in zip(self.form.entries, [b for side in sides for b in side[:2]]):
            _require_prior(entries, block)
        return PairedPrior(sides[0], sides[-1], gammas, float(ratio), float(log_prior))

    def expected_log_prior(
        self, theta: np.ndarray, users: Symbols, items: Symbols, *, of_log_prior: float = 1.0
    ) -> tuple[float, np.ndarray]:
        """Return the expected log prior of factors, biases and hyperparameters, and its gradient in theta, (p,).

        The expectation is over the posteriors `users` and `items`. Terms that do not depend on theta are left out. The
        log density of the hyperparameters is multiplied by `of_log_prior`.
        """
        moments = [array for symbols in (users, items)[: len(self.form.sides)] for array in symbols]
        value, *gradient = self._expected(*self.unpack(theta), *moments, of_log_prior)
        return float(value), np.concatenate([np.zeros(0), *(np.ravel(g) for g in gradient)])

    def fingerprint(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Return arrays by name that identify data and prior, to check whether a result belongs to the model."""
        prior = self.prior(theta)
        blocks = [block for side in (prior.users, prior.items) for block in side[:2]]
        precisions = [np.where(np.isfinite(b.precision), b.precision, 0.0).mean() for b in blocks]
        users, items, counts = as_counts(self.observed()[0])
        return {
            "pairs": digest(users.astype(np.int64), items.astype(np.int64), counts.astype(np.int64)),
            "censored_ratio": np.array(prior.censored_ratio),
            "prior_mean": np.array([block.mean.mean() for block in blocks]),
            "prior_precision": np.array(precisions),
            "concentrations": np.array([prior.users.concentration.mean(), prior.items.concentration.mean()]),
        }

    def scale_of(self, entries: GaussianEntries) -> str:
        """Return the name of a variable that the prior precision of `entries` depends on, or an empty string."""
        if entries.learned >= 0:
            return self.form.precisions[entries.learned].name
        behind = set(ancestors([entries.precision]))
        return next((n for n, value in zip(self.form.hyper_names, self.form.hyper_values) if value in behind), "")

    def describe(self) -> str:
        """Return a description of the form, one line per part."""
        form, (n_users, n_items, width) = self.form, self.shapes
        pairs = "unordered pairs of alike symbols" if form.alike else "pairs"
        lines = [f"form             {pairs} drawn by popularity and censored by preference (paired symbols)"]
        for side, n in zip(form.sides, (n_users, n_items)):
            lines.append(f"latent           {side.factors.name}: {n} x {width} values, Gaussian")
            if side.bias.name:
                lines.append(f"latent           {side.bias.name}: {n} values, Gaussian")
            lines.append(f"latent           {side.popularity}: {n} values, Dirichlet")
        lines += [f"latent           {precision.name}: precision, Gamma" for precision in form.precisions]
        counts = as_counts(self.observed()[0])[2]
        number = float(self._data()[1]) * counts.sum()
        lines.append(f"observed         {form.pairs.name}: {counts.sum():g} pairs, {number:g} censored ones")
        lines.append(f"hyperparameters  {self._describe_hyperparameters()}")
        lines.append(f"ignored          {', '.join(form.ignored) or 'none'}")
        return "\n".join(lines)

    @cached_property
    def _data(self) -> Callable[..., Any]:
        return self.function([], [self.form.pairs.observed, self.form.pairs.censored_ratio])

    @cached_property
    def _prior(self) -> Callable[..., Any]:
        form = self.form
        outputs = [form.log_prior, form.pairs.censored_ratio]
        for side in form.sides:
            outputs += [graph for prior in (side.factors, side.bias) for graph in (prior.mean, prior.precision)]
            outputs.append(side.concentration)
        outputs += [graph for prior in form.precisions for graph in (prior.shape, prior.rate)]
        return self.function(form.hyper_values, [pt.as_tensor(graph).astype("float64") for graph in outputs])

    @cached_property
    def _expected(self) -> Callable[..., Any]:
        """Compiled expected log prior, of the terms that depend on hyperparameters, and its gradient.

        Blocks whose precision has a Gamma prior are left out: their priors depend on no hyperparameter.
        """
        of_log_prior = pt.dscalar("of_log_prior")
        total, moments = of_log_prior * self.form.log_prior, []
        for entries in self.form.entries:
            mean, variance = entries.mean.type(), entries.mean.type()
            moments += [mean, variance]
            if entries.name and entries.learned < 0:
                # E log N(u; m, 1 / p) = (log p - p ((E u - m)^2 + Var u)) / 2, without log 2 pi.
                square = entries.precision * ((mean - entries.mean) ** 2 + variance)
                total += 0.5 * (pt.log(entries.precision) - square).sum()
        values = list(self.form.hyper_values)
        gradient = pytensor.grad(total, values, disconnected_inputs="ignore") if values else []
        return self.function([*values, *moments, of_log_prior], [total, *gradient])


def _require_prior(entries: GaussianEntries, block: Block) -> None:
    """Raise InvalidDataError unless prior means are finite, and precisions positive and, but for constants, finite."""
    bad = ~np.isfinite(block.mean)
    if bad.any():
        place = tuple(map(int, np.unravel_index(int(np.argmax(bad)), bad.shape)))
        raise InvalidDataError(f"{entries.name!r} has the prior mean {block.mean[place]} at index {place}; correct it.")
    bad = ~(block.precision > 0) | (np.isinf(block.precision) & bool(entries.name))
    if bad.any():
        place = tuple(map(int, np.unravel_index(int(np.argmax(bad)), bad.shape)))
        # A precision 1 / (s |s|) keeps the sign of the standard deviation s.
        sd = np.sign(block.precision[place]) / np.sqrt(np.abs(block.precision[place]))
        raise InvalidDataError(
            f"{entries.name!r} has the prior standard deviation {sd:.3g} at index {place}, which must be positive; "
            f"correct it."
        )
