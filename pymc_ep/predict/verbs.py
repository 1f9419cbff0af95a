"""Verbs: functions of results beyond predictions, such as recommendations, which forms of models register."""

from collections.abc import Mapping
from typing import Any

import pymc as pm
import xarray as xr

from pymc_ep.compat import Container
from pymc_ep.concurrency import one_at_a_time
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms import compiled_form, entry_of, forms
from pymc_ep.graphs.context import model_of
from pymc_ep.predict.rebuild import registered
from pymc_ep.results import fit_method, latent_of

__all__ = ["call_verb", "fold_in", "next_items", "next_pairs", "rank_items", "recommend", "similar"]


def call_verb(name: str, idata: Container, model: pm.Model | None = None, /, **arguments: Any) -> Any:
    """Call a verb, a function that the form of a fit has registered under a name, and return its result.

    See `pymc_ep.forms.FormEntry.verbs`.

    Parameters
    ----------
    name : str
        Name of the verb, such as ``"recommend"``.
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    model : pymc.Model, optional
        The fitted model; by default the model of the context.
    **arguments
        Arguments of the verb.

    Raises
    ------
    UnsupportedModelError
        Where the form of the fit has no such verb; the message lists its verbs, and the forms that have this one.
    """
    model = model_of(model)
    verb = registered(idata, model, lambda entry: entry.verbs.get(name))
    if verb is not None:
        return verb(idata, model, **arguments)
    entry = entry_of(compiled_form(model, latent_of(idata, model)).form)
    offered = [*entry.verbs, *(["predict"] if entry.gaussian else []), "pm.sample_posterior_predictive"]
    others = " or ".join(repr(other.rows()[0][0]) for other in forms() if name in other.verbs)
    raise UnsupportedModelError(
        f"{name} takes fits of other models, such as {others or 'a form that registers it'}; this is a fit by "
        f"{fit_method(idata)!r}, which offers {', '.join(offered)}. pymc_ep.supported() lists what others offer."
    )


@one_at_a_time
def recommend(
    idata: Container,
    model: pm.Model | None = None,
    *,
    n: int = 20,
    by: str | None = None,
    exclude_observed: bool = True,
    candidates: Any = None,
    cells: Mapping[str, Any] | None = None,
    **rows: Any,
) -> xr.Dataset:
    """Return the rows of one matrix that rank highest for given rows of the other one, such as items for users.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit` of a bilinear model or of `PairedSymbols`, also one read back from disk.
    model : pymc.Model, optional
        The fitted model; by default the model of the context.
    n : int
        Largest number of recommendations for each row.
    by : {"calibrated_probability", "probability", "predictor_mean"}, optional
        Score of the ranking, by default the first one that the fit has. ``"calibrated_probability"`` is the probability
        of the item of a user's next pair, for fits of `PairedSymbols` that were calibrated by pairs left out.
        ``"probability"`` is the probability of an observation above the least possible one: P(y > 0), and P(y > 1) if
        zeros are truncated; with `PairedSymbols`, of the next observed pair under the posterior, given its row.
        ``"predictor_mean"`` is the mean of the predictor: for counts the log rate, which also separates counts that are
        almost surely positive, and for pairs the preference, without the popularity. The mean of a rate itself need
        not exist.
    exclude_observed : bool
        Whether pairs that are in the data of the model, or of a folded-in row, are left out.
    candidates : sequence, optional
        Rows of the other matrix that may be recommended, as labels or positions: items in stock, say. By default all.
    cells : mapping of str to float, optional
        For bilinear models, ``offset``, without biases, and parameters of the likelihood where they differ from cell to
        cell in the fit.
    **rows
        Rows of one matrix, by the dim of its rows or its name, as in ``user=["ann", "bob"]``: labels where that dim has
        coordinates, or positions where it has no coordinates or these are no numbers. For new rows, the dataset of
        `fold_in`.

    Returns
    -------
    xarray.Dataset
        By row and ``rank``, the best first: labels of the other matrix's rows, under the name of their dim, or of the
        matrix where both matrices have the same dim, and NaN where a row has fewer recommendations than another;
        ``probability``, ``predictor_mean`` and ``predictor_sd``, and ``calibrated_probability`` if ranked by it, which
        sums to one over the rows that are left. Hyperparameters are at their mode. Probabilities of bilinear models are
        for Gaussian predictors with these moments. Predictors are sums of products, which are nearly Gaussian: the
        probabilities are off by 0.002 for two factors with few observed cells, and by 0.005 for a single factor with
        nothing but its prior.

    Raises
    ------
    UnsupportedModelError
        If the model has no two matrices of rows.
    ValueError
        For unknown rows or candidates.
    """
    options = {"n": n, "by": by, "exclude_observed": exclude_observed, "candidates": candidates, "cells": cells}
    return call_verb("recommend", idata, model, **options, **rows)


@one_at_a_time
def rank_items(
    idata: Container,
    model: pm.Model | None = None,
    *,
    by: str | None = None,
    exclude_observed: bool = True,
    cells: Mapping[str, Any] | None = None,
    **pairs: Any,
) -> xr.Dataset:
    """Return the ranks of given pairs, such as held-out items of users, among all pairs not observed for their rows.

    For utilities of items it returns the distribution of the ranks of all items for given users.

    Parameters
    ----------
    idata, model, by, exclude_observed, cells
        As in `recommend`; for utilities only the defaults are allowed.
    **pairs
        Rows of both matrices, by dims or names, with as many labels or positions each, as in
        ``user=["ann"], item=["heat"]``. Rows of the second are ranked for rows of the first. For a model with a
        `PreferenceUtility`, users alone, as in ``user=["ann"]``, and nothing if there is one user.

    Returns
    -------
    xarray.Dataset
        For utilities, by user and item: ``rank_probability`` of the first 100 ranks, ``mean_rank``, and
        ``probability_best``, by 4000 draws of the posterior, with standard errors of 0.008 at most. Otherwise ``rank``,
        the share of the other candidates that a pair ranks above, equal scores counted half: 1 for the best,
        1/2 on average by chance [1]_. ``position``, from 1, is the mean of the pair's possible positions among equals.
        ``log_probability`` is the logarithm of the pair's probability, where the scores by `by` are probabilities that
        sum to one over the candidates.
        `rank_metrics` computes hit rates, recall and NDCG from these.

    Raises
    ------
    UnsupportedModelError
        If the model has no two matrices of rows.
    ValueError
        For unknown rows, lists of unequal length, and pairs that were observed themselves if those are left out.

    References
    ----------
    .. [1] U. Paquet, N. Koenigstein and O. Winther (2014), Scalable Bayesian modelling of paired symbols,
       arXiv:1409.2824, equation 12.
    """
    return call_verb("rank_items", idata, model, by=by, exclude_observed=exclude_observed, cells=cells, **pairs)


@one_at_a_time
def similar(idata: Container, model: pm.Model | None = None, *, n: int = 20, **rows: Any) -> xr.Dataset:
    """Return the nearest rows of the same matrix, such as items that the same users view.

    Parameters
    ----------
    idata, model
        As in `recommend`.
    n : int
        Number of neighbours of each row, or as many as there are.
    **rows
        Rows of one matrix, as labels or positions, by the dim of its rows or its name, as in ``item=["heat"]``.

    Returns
    -------
    xarray.Dataset
        By row and ``rank``, the nearest first: labels as ``neighbour``, and ``similarity``, the cosine of the posterior
        means of both rows, without biases. Rows without factors have a similarity of zero to all.

    Raises
    ------
    UnsupportedModelError
        If the model has no two matrices of rows.
    ValueError
        For unknown rows, and for a matrix of one row.
    """
    return call_verb("similar", idata, model, n=n, **rows)


@one_at_a_time
def fold_in(idata: Container, model: pm.Model | None, data: Mapping[str, Any]) -> xr.Dataset:
    """Return the posterior of new rows of one matrix, such as new users, given the fitted rows of the other one.

    New rows have the prior of the fitted ones. Hyperparameters are at their mode, and the fit does not change.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit` of a bilinear model or of `PairedSymbols`, also one read back from disk.
    model : pymc.Model or None
        The fitted model; None takes the model of the context.
    data : mapping
        Maps the dim of the matrix's rows, such as ``"user"``, or its name to the observations of the new rows.
        Bilinear models take a mapping of ``rows``, ``cols`` and ``observed`` as in the distribution, and ``offset``,
        without biases, or parameters of the likelihood, unless these are the same for all cells of the fit. The
        matrix's own index counts new rows from 0; if it is missing or a scalar, all cells are in one row. The other
        index is of fitted rows. `PairedSymbols` takes a SciPy sparse matrix of counts with the new rows as its
        rows, or pairs, (D, 2), of a new row, counted from 0, and a fitted row of the other side.

    Returns
    -------
    xarray.Dataset
        ``<matrix>_mean`` and ``<matrix>_sd``, and with a bias ``<bias>_mean`` and ``<bias>_sd``, for new rows numbered
        from 0. Point estimates have a standard deviation of zero. ``<matrix>_converged`` is a flag for each row.
        ``<y>_rows``, ``<y>_cols`` and ``<y>_observed`` are the new observations of the variable y. The attribute
        ``status`` has the number of rows without observations. For bilinear models ``<matrix>_bound`` is each row's
        bound, and after a fit with ``covariance="full"`` ``<matrix>_factor``, (rows, K, K), has the Cholesky factors of
        the rows' covariances, a bias last. `recommend` accepts this dataset.

    Raises
    ------
    UnsupportedModelError
        If the model has no two matrices of rows, or the prior differs from row to row.
    InvalidDataError
        For indices out of range, and observations outside their domain.

    Warns
    -----
    ConvergenceWarning
        Where rows stopped short of their maximum; the message has their number.
    """
    return call_verb("fold_in", idata, model, data=data)


@one_at_a_time
def next_pairs(idata: Container, model: pm.Model | None = None, *, n: int = 5, **user: Any) -> xr.Dataset:
    """Return the comparisons of two items of the largest expected information on the utilities of a user.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit` of a model with a `PreferenceUtility`, also one read back from disk.
    model : pymc.Model, optional
        The fitted model; by default the model of the context.
    n : int
        Number of comparisons.
    **user
        The dim of the users with one label or position, as in ``user="ann"``; none for utilities of one user.

    Returns
    -------
    xarray.Dataset
        By ``comparison``, the best first: the labels ``first`` and ``second``, the expected ``information`` of an
        answer in bits [1]_, and the ``probability`` that the first item wins.

    Raises
    ------
    UnsupportedModelError
        If the model has no utilities of items.
    ValueError
        For unknown users, and several of them.

    References
    ----------
    .. [1] N. Houlsby, F. Huszar, Z. Ghahramani and M. Lengyel (2011), Bayesian active learning for classification and
       preference learning, arXiv:1112.5745.
    """
    return call_verb("next_pairs", idata, model, n=n, **user)


@one_at_a_time
def next_items(idata: Container, model: pm.Model | None = None, *, n: int = 10, **user: Any) -> xr.Dataset:
    """Return the most probable next items of given users, after all that was observed of them.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit` of a model with a `CollaborativeRNN`, also one read back from disk.
    model : pymc.Model, optional
        The fitted model; by default the model of the context.
    n : int
        Number of items; as many as there are, or more, give the whole distribution.
    **user
        The dim of the users with a label or position, or a list of these, as in ``user=7``. Where events have
        contexts, the dim of contexts as well, with the context of the next event, as in ``hour=9``.

    Returns
    -------
    xarray.Dataset
        By user and ``rank``, the most probable first: labels of the items, under the name of their dim, and
        ``probability``.

    Raises
    ------
    UnsupportedModelError
        If the model has no sequences.
    ValueError
        For unknown users.
    """
    return call_verb("next_items", idata, model, n=n, **user)
