"""An interruption ends a fit with what it has reached."""

import linecache
import os
import signal
import subprocess
import sys
import time

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_ep as pmep
from pymc_ep.compat import group_names, make_container
from pymc_ep.engines import loop, progress
from pymc_ep.engines.base import Status
from pymc_ep.engines.interrupt import Interrupted, is_interrupt, reached, signals_outside_numba
from pymc_ep.evidence.ep.engine import EP
from pymc_ep.evidence.ep.evidence import Evidence

QUIET = {"draws": 50, "chains": 1, "random_seed": 1}
RNG = np.random.default_rng(0)
COUNTS = np.array([1, 0, 3, 2, 7, 4])
X = np.linspace(0.0, 1.0, 6)[:, None]


def process():
    amp = pm.HalfNormal("amp", 1.0)
    gp = pm.gp.Latent(cov_func=amp**2 * pm.gp.cov.ExpQuad(1, 0.4))
    pm.Poisson("y", pm.math.exp(gp.prior("f", X=X)), observed=COUNTS)


def field():
    b = pm.HalfNormal("b", 1.0)
    u = pmep.SparseField("u", operator=np.diff(np.eye(8), axis=0), potential=pm.Laplace.dist(0, b))
    pm.Normal("y", u, 0.3, observed=np.repeat([0.0, 1.0], 4) + 0.3 * np.random.default_rng(1).normal(size=8))


def counts_of_pairs():
    s = pm.HalfNormal("s", 1.0)
    V, U = pm.Normal("V", 0, s, shape=(6, 2)), pm.Normal("U", 0, 1, shape=(5, 2))
    rows, cols = np.divmod(np.arange(30), 5)
    y = np.random.default_rng(2).poisson(1.5, 30)
    pmep.BilinearPoisson("y", V, U, rows, cols, link="softplus", observed=y)


CASES = {
    "ep": (process, {"method": "ep", "hyper": "fixed"}),
    "dsb": (field, {"method": "dsb"}),
    "map": (field, {"method": "map", "hyper": "fixed"}),
    "vg": (counts_of_pairs, {"method": "vg"}),
    "vbmf": (counts_of_pairs, {"method": "vbmf"}),
}


def interrupt_at(monkeypatch, count):
    """Interrupt when a fit reports for the `count`-th time, once."""
    calls_made = []

    def report(*_):
        calls_made.append(1)
        if len(calls_made) == count:
            raise KeyboardInterrupt

    monkeypatch.setattr(progress._ProgressBar, "__call__", report)
    return calls_made


def model_of(make):
    with pm.Model() as model:
        make()
    return model


@pytest.mark.parametrize("name", CASES)
def test_the_state_reached_is_returned_and_gone_on_with(name, tmp_path, monkeypatch):
    make, options = CASES[name]
    model, path = model_of(make), tmp_path / "fit.npz"
    with monkeypatch.context() as context:
        interrupt_at(context, 1)
        with pytest.warns(pmep.ConvergenceWarning, match=r"may be off: interrupted after 2 iterations"):
            idata = pmep.fit(model=model, checkpoint=path, **QUIET, **options)
    fit = idata["fit"]
    assert not bool(fit["converged"])
    assert "interrupted after 2 iterations" in fit.attrs["status"]
    assert fit["objective"].size == fit["max_change"].size == 2
    moments = "posterior_mode" if name == "map" else "posterior_mean"
    assert all(np.isfinite(values).all() for values in idata[moments].data_vars.values())
    assert ("posterior" in group_names(idata)) == (name != "map")
    assert path.exists()
    whole = pmep.fit(model=model, progressbar=False, **QUIET, **options)
    resumed = pmep.fit(model=model, checkpoint=path, progressbar=False, **QUIET, **options)
    assert bool(whole["fit"]["converged"]) and bool(resumed["fit"]["converged"])
    if name in ("ep", "dsb"):
        np.testing.assert_allclose(resumed["fit"]["log_evidence"], whole["fit"]["log_evidence"], atol=1e-3)


def test_a_search_returns_its_best_fit(monkeypatch, tmp_path):
    model, path = model_of(process), tmp_path / "fit.npz"
    evaluations, values = [], []
    whole = pmep.fit(model=model, hyper="optimize", start={"amp": 6.0}, progressbar=False, **QUIET)
    at = Evidence.at

    def interrupted(evidence, theta, start=None):
        evaluations.append(theta)
        if len(evaluations) == 4:
            raise KeyboardInterrupt
        found = at(evidence, theta, start)
        values.append(found.value)
        return found

    with monkeypatch.context() as context:
        context.setattr(Evidence, "at", interrupted)
        with pytest.warns(pmep.ConvergenceWarning, match="interrupted after 4 evaluations of the evidence"):
            idata = pmep.fit(
                model=model, hyper="optimize", start={"amp": 6.0}, checkpoint=path, progressbar=False, **QUIET
            )
    best = evaluations[int(np.argmax(values))]
    np.testing.assert_allclose(np.log(idata["fit"]["hyper_mode_amp"]), best[0], rtol=1e-12)
    assert idata["fit"].sizes["hyper_iteration"] == 3
    resumed = pmep.fit(model=model, hyper="optimize", start={"amp": 6.0}, checkpoint=path, progressbar=False, **QUIET)
    np.testing.assert_allclose(resumed["fit"]["hyper_mode_amp"], whole["fit"]["hyper_mode_amp"], rtol=1e-3)


def test_a_search_interrupted_in_its_first_fit_returns_that(monkeypatch):
    with monkeypatch.context() as context:
        interrupt_at(context, 1)
        with pytest.warns(pmep.ConvergenceWarning, match="interrupted after 1 evaluations"):
            idata = pmep.fit(model=model_of(process), hyper="optimize", **QUIET)
    assert "EP itself interrupted" not in idata["fit"].attrs["status"]
    assert np.isfinite(idata["posterior_mean"]["f"]).all()


def test_before_there_is_a_state_it_is_an_interruption(monkeypatch):
    def init(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(EP, "init", init)
    for hyper in ("fixed", "optimize"):
        with pytest.raises(KeyboardInterrupt):
            pmep.fit(model=model_of(process), hyper=hyper, progressbar=False, **QUIET)


def compiled(cause):
    """Raise what a compiled function makes of a pending exception, once PyTensor has wrapped it."""
    try:
        try:
            raise SystemError("returned a result with an exception set") from cause
        except SystemError:
            raise SystemError("Apply node that caused the error")  # noqa: B904 (as PyTensor does)
    except SystemError as error:
        return error


def test_compiled_functions_turn_it_into_a_system_error(monkeypatch):
    step, errors = EP.step, [compiled(KeyboardInterrupt())]

    def failing(engine, problem, state):
        if errors:
            raise errors.pop()
        return step(engine, problem, state)

    with monkeypatch.context() as context:
        context.setattr(EP, "step", failing)
        with pytest.warns(pmep.ConvergenceWarning, match="interrupted after 1 iterations"):
            pmep.fit(model=model_of(process), hyper="fixed", progressbar=False, **QUIET)
        errors.append(compiled(ValueError("another reason")))
        with pytest.raises(SystemError, match="Apply node"):
            pmep.fit(model=model_of(process), hyper="fixed", progressbar=False, **QUIET)


def test_what_is_reached():
    assert reached(Interrupted("now")) == "now"
    assert reached(Interrupted("now"), "best") == "best"
    assert reached(compiled(KeyboardInterrupt()), "best") == "best"
    assert not is_interrupt(compiled(None))
    for stop in (KeyboardInterrupt(), compiled(KeyboardInterrupt())):
        with pytest.raises(KeyboardInterrupt):
            reached(stop)
    with pytest.raises(SystemError):
        reached(compiled(None), "best")


class Halving:
    """An engine that halves a number until it is small."""

    init = staticmethod(lambda problem, start=None: problem)
    step = staticmethod(lambda problem, state: state / 2)
    objective = staticmethod(lambda state: -state)
    change = staticmethod(lambda state: state)
    finished = staticmethod(lambda state: Status(True, "small") if state < 0.1 else None)
    exhausted = staticmethod(lambda state, iterations: "not small")


def test_between_two_steps_is_part_of_the_loop():
    """An interruption at any line from the first step to the last returns the state before or after it."""
    whole = loop.run(Halving(), 1.0, max_iter=9)
    lines = 0

    def interrupted(at):
        """Run the loop, and interrupt it at a line that it reaches, counted from its first step."""
        nonlocal lines
        lines = -1

        def trace(frame, event, _):
            nonlocal lines
            if event != "line" or frame.f_locals.get("status") is not None:
                return trace
            lines += lines >= 0 or "step" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if lines == at:
                raise KeyboardInterrupt
            return trace

        earlier = sys.gettrace()
        sys.settrace(lambda frame, event, _: trace if frame.f_code is loop.run.__code__ else None)
        try:
            return loop.run(Halving(), 1.0, max_iter=9)
        finally:
            sys.settrace(earlier)

    for at in range(40):
        run = interrupted(at)
        if lines < at:
            break
        assert run.status.interrupted and run.state in whole.change
        np.testing.assert_array_equal(run.change, whole.change[: len(run.change)])
        np.testing.assert_array_equal(run.objective, whole.objective[: len(run.change)])
    assert at > 15 and run.status.converged


def test_recovered_draws_have_the_nearest_fit(monkeypatch):
    """Sites of the draws that were not fitted are those of the nearest; the prior is their own."""
    model = model_of(process)
    rng = np.random.default_rng(0)
    amps = np.exp(0.05 * rng.normal(size=(2, 20)))
    draws = make_container({"posterior": az.convert_to_dataset({"amp": amps})})
    options = {"random_seed": 1, "progressbar": False}
    whole = pmep.recover(draws, model, **options)
    at, count = Evidence.at, []

    def interrupted(evidence, theta, start=None, **engine):
        count.append(1)
        if len(count) == 30:
            raise KeyboardInterrupt
        return at(evidence, theta, start, **engine)

    with monkeypatch.context() as context:
        context.setattr(Evidence, "at", interrupted)
        with pytest.warns(pmep.ConvergenceWarning, match="interrupted: 11 of them have the sites of a near one"):
            part = pmep.recover(draws, model, **options)
    np.testing.assert_allclose(part["posterior_mean"]["f"], whole["posterior_mean"]["f"], atol=1e-3)
    assert part["posterior"]["f"].shape == whole["posterior"]["f"].shape


SCRIPT = """
import signal, sys, warnings
import numpy as np, pymc as pm, pymc_ep as pmep
from pymc_ep.engines import progress

signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl-C is ignored in a process of the background.
warnings.simplefilter("ignore")
n = {n}
x = np.linspace(0, 10, n)[:, None]
with pm.Model():
    ell, amp = pm.InverseGamma("ell", mu=1.0, sigma=0.5), pm.HalfNormal("amp", 1.0)
    f = pm.gp.Latent(cov_func=amp**2 * pm.gp.cov.Matern52(1, ls=ell)).prior("f", X=x, reparameterize=False)
    {likelihood}, observed=np.random.default_rng(0).poisson(2.0, n))
    progress._ProgressBar.__call__ = lambda *_: print("running", flush=True)
    {before}
    idata = pmep.fit({options})
    print("ended", bool(idata["fit"]["converged"]), idata["fit"].attrs["status"], flush=True)
"""


def interrupted_run(wait_for, seconds, **parts):
    """Run the script, send it what Ctrl-C sends some seconds after its first sign of life, and return what it says."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    defaults = {"before": "pass", "likelihood": "pm.Poisson('y', pm.math.exp(f)"}
    script = SCRIPT.format(**defaults | parts)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as running:
        for line in running.stdout:
            if wait_for in line:
                break
        time.sleep(seconds)
        running.send_signal(signal.SIGINT)
        try:
            out, err = running.communicate(timeout=120)
        finally:
            running.kill()
    assert running.returncode == 0, err
    return out


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("seconds", [0.0, 0.31, 0.87])
def test_a_signal_ends_a_search(seconds):
    out = interrupted_run("running", seconds, n=900, options="draws=0")
    assert "ended False" in out and "interrupted after" in out


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_signal_ends_sampling():
    """The draws made are those of the result; where chains take turns, each takes a signal to end."""
    before = (
        "told = lambda trace, draw: draw.tuning or draw.draw_idx % 100 or print('running', flush=True); "
        "sample = pm.sample; pm.sample = lambda *a, **k: sample(*a, callback=told, **k)"
    )
    options = "hyper='sample', draws=500_000, chains=1, random_seed=1, progressbar=False"
    out = interrupted_run("running", 0.5, n=3, likelihood="pm.Normal('y', f, 0.5", before=before, options=options)
    assert "ended False interrupted after" in out and "of 500000 draws a chain" in out


def test_a_signal_inside_numba_waits_until_it_has_returned():
    """Numba unpickles constants by Python code whose exceptions its compiled functions turn into a SystemError."""
    inside, returned = {"__name__": "numba.core.serialize", "signal": signal}, []
    exec("def unpickle(): signal.raise_signal(signal.SIGINT); return True", inside)

    def loop_of_others():
        with signals_outside_numba():
            returned.append(inside["unpickle"]())
            time.sleep(30.0)
            returned.append("slept")

    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            loop_of_others()
        assert returned == [True]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, earlier)


def test_sampling_without_a_draw_is_an_interruption(monkeypatch):
    model = model_of(process)
    draws = make_container({"posterior": xr.Dataset({"amp": (("chain", "draw"), np.ones((1, 0)))})})
    monkeypatch.setattr(pm, "sample", lambda *_, **__: draws)
    with pytest.raises(KeyboardInterrupt, match="before its first draw"):
        pmep.fit(model=model, hyper="sample", draws=10, chains=1, progressbar=False)


def test_an_interruption_while_chains_tune_is_one():
    """Raised by PyMC's own callback, as Ctrl-C would be: PyMC makes a ValueError of it."""
    model, sample = model_of(process), pm.sample

    def press(trace, draw):
        if draw.draw_idx == 3:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as context:
        context.setattr(pm, "sample", lambda **arguments: sample(callback=press, **arguments))
        with pytest.raises(KeyboardInterrupt, match="before its first draw"):
            pmep.fit(model=model, hyper="sample", draws=10, chains=1, sample_kwargs={"tune": 10}, progressbar=False)


def test_an_interrupted_integration_returns_draws_of_what_it_knows(monkeypatch):
    """Interrupted where it checks its draws: their spread is there, and no more is claimed."""
    model = model_of(process)
    with monkeypatch.context() as context:
        reports = interrupt_at(context, 0)
        whole = pmep.fit(model=model, **QUIET)
    with monkeypatch.context() as context:
        interrupt_at(context, int(0.7 * len(reports)))
        with pytest.warns(pmep.ConvergenceWarning, match="interrupted after .* integrated over as far as these tell"):
            found = pmep.fit(model=model, **QUIET)
    assert not bool(found["fit"]["converged"])
    assert int(found["fit"]["n_evaluations"]) < int(whole["fit"]["n_evaluations"])
    mean, sd = (float(whole[f"posterior_{what}"]["amp"]) for what in ("mean", "sd"))
    assert abs(float(found["posterior_mean"]["amp"]) - mean) < 0.2 * sd
    np.testing.assert_allclose(float(found["posterior_sd"]["amp"]), sd, rtol=0.2)
    assert pmep.diagnose(found, model).attrs["verdict"].startswith("Not to be trusted")
