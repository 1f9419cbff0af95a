"""Fits of one model by several methods, side by side."""

import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm

from pymc_ep.compat import Container
from pymc_ep.exceptions import ConvergenceWarning, NumericalError, UnsupportedModelError
from pymc_ep.fit import fit
from pymc_ep.forms import able_methods, compiled_form
from pymc_ep.graphs.context import model_of
from pymc_ep.results import fit_group, posterior_moments

__all__ = ["compare_methods"]

_MEAN, _SD = 0.2, 0.1
"""Least differences that count as disagreement: of means, in standard deviations, and of standard deviations, relative.
Errors of EP are below both on most models, errors of Laplace's approximation above one of them in skewed posteriors."""
_ABOVE = 0.05
"""Nats by which a lower bound may exceed EP's log evidence, which errs by some hundredths itself."""
_COLUMNS = (
    "log_evidence",
    "log_evidence_is",
    "mean_difference",
    "mean_of",
    "sd_ratio",
    "sd_of",
    "seconds",
    "converged",
    "status",
)


class Comparison(pd.DataFrame):
    """A table of methods, printed after its verdict."""

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    def __repr__(self) -> str:
        return f"{self.attrs.get('verdict', '')}\n\n{pd.DataFrame(self).to_string()}"


def compare_methods(
    model: pm.Model | None = None, methods: Sequence[str] | None = None, *, draws: int = 0, **arguments: Any
) -> pd.DataFrame:
    """Fit a model by several methods and compare their posteriors with the first one's.

    Methods that agree may still all be wrong, as where a posterior has two peaks. Where they differ, `pymc.sample`
    tells which one is right.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the one of the ``with`` block.
    methods : sequence of str, optional
        By default all that take the model and have posterior moments, the default method first.
    draws : int
        As in `fit`, for each method: moments need none.
    **arguments
        Arguments of `fit`, the same for all methods, such as ``hyper="fixed"``.

    Returns
    -------
    pandas.DataFrame
        A row for each method, with columns

        ``log_evidence``, ``log_evidence_is``
            Log evidence by the method, or a bound on the log evidence, and a description of its kind.
        ``mean_difference``, ``mean_of``
            The largest difference of a posterior mean from the first method's, in standard deviations of the first, and
            the element that has it.
        ``sd_ratio``, ``sd_of``
            The ratio of standard deviations to the first method's, of the element where it is farthest from one.
        ``seconds``
            Time of the fit with its compilation, of which an earlier method may have done a part.
        ``converged``, ``status``
            As in the result of the fit. For a method that fails, False and the message of its error.

        Its attribute ``attrs["verdict"]``, printed first, says where methods differ by more than they should: means by
        a fifth of a standard deviation, standard deviations by a tenth, or a bound above EP's evidence.

    Raises
    ------
    ValueError
        For fewer than two methods.
    NumericalError, UnsupportedModelError
        Where the fit by the first method raises it.
    """
    model = model_of(model)
    names = list(methods) if methods is not None else _able(model, arguments.get("latent"))
    if len(names) < 2:
        raise ValueError(
            f"compare_methods needs two methods or more, and has {', '.join(names) or 'none'}; see explain()."
        )
    arguments = {"progressbar": False} | arguments
    rows: list[dict[str, Any]] = []
    fits: list[Container] = []
    for name in names:
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            try:
                idata = fit(name, model=model, draws=draws, **arguments)
            except (NumericalError, UnsupportedModelError) as error:
                if not fits:
                    raise
                rows.append({"log_evidence_is": "", "converged": False, "status": str(error)})
                continue
        fits.append(idata)
        group = fit_group(idata)
        row = {
            "log_evidence": float(group.get("log_evidence", np.nan)),
            "log_evidence_is": group.attrs.get("log_evidence_is", ""),
            "seconds": time.perf_counter() - began,
            "converged": bool(group["converged"]),
            "status": str(group.attrs["status"]),
        }
        rows.append(row | _differences(idata, fits[0]))
    table = Comparison(rows, index=pd.Index(names, name="method"), columns=list(_COLUMNS))
    table.attrs["verdict"] = _verdict(table)
    return table


def _able(model: pm.Model, latent: Sequence[str] | None) -> list[str]:
    """Return the names of the methods that take a model, except "map", whose result has no moments."""
    return [method.name for method in able_methods(compiled_form(model, latent).form) if method.name != "map"]


def _differences(idata: Container, first: Container) -> dict[str, Any]:
    """Return the largest differences of means and standard deviations from the first fit's, and their elements."""
    means, sds, other_means, other_sds = (
        posterior_moments(fitted, what) for fitted in (idata, first) for what in ("mean", "sd")
    )
    out: dict[str, Any] = {"mean_difference": 0.0, "mean_of": "", "sd_ratio": 1.0, "sd_of": ""}
    for name in means.data_vars:
        if name not in other_means:
            continue
        sd = other_sds[name].to_numpy()
        safe_sd = np.where(sd > 0.0, sd, 1.0)
        difference = np.where(sd > 0.0, np.abs(means[name].to_numpy() - other_means[name].to_numpy()) / safe_sd, 0.0)
        ratio = np.where(sd > 0.0, sds[name].to_numpy() / safe_sd, 1.0)
        for values, farthest, value, of in (
            (difference, difference, "mean_difference", "mean_of"),
            (ratio, np.abs(np.log(np.maximum(ratio, np.finfo(float).tiny))), "sd_ratio", "sd_of"),
        ):
            index = np.unravel_index(int(np.argmax(farthest)), np.shape(values))
            best = out[value] if value == "mean_difference" else abs(np.log(out[value]))
            if farthest[index] > best:
                out |= {value: float(values[index]), of: f"{name}{list(map(int, index)) if index else ''}"}
    return out


def _verdict(table: pd.DataFrame) -> str:
    """Return a sentence for each method that differs from the first by more than it should."""
    first, sentences = table.index[0], []
    for name, row in table.iloc[1:].iterrows():
        if np.isnan(row["log_evidence"]) and not row["converged"]:
            sentences.append(f"{name!r} has no fit: {row['status']}")
            continue
        if row["mean_difference"] > _MEAN:
            sentences.append(
                f"The mean of {row['mean_of']} by {name!r} is {row['mean_difference']:.2f} standard deviations from "
                f"that by {first!r}."
            )
        if abs(np.log(row["sd_ratio"])) > np.log1p(_SD):
            sentences.append(
                f"The standard deviation of {row['sd_of']} by {name!r} is {row['sd_ratio']:.2f} of that by {first!r}."
            )
    by_ep = table["log_evidence"].get("ep", np.nan)
    for name, row in table.iterrows():
        if row["log_evidence_is"].startswith("lower bound") and row["log_evidence"] > by_ep + _ABOVE:
            sentences.append(
                f"The bound by {name!r} is {row['log_evidence'] - by_ep:.2f} nats above the log evidence by 'ep', "
                f"which is too small by as much at least."
            )
    lost = table.index[~table["converged"].astype(bool)].tolist()
    if lost:
        sentences.append(f"Not converged: {', '.join(map(repr, lost))}.")
    if not sentences:
        return "The methods agree: means within a fifth of a standard deviation, standard deviations within a tenth."
    return "\n".join([*sentences, "Compare with pm.sample, started by pmep.start_point(idata)."])
