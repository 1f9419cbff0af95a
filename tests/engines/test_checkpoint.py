"""A fit writes its state and resumes from it."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.engines.checkpoint import Checkpoint


def test_a_checkpoint_is_written_at_the_end_and_resumed_from(tmp_path):
    path = tmp_path / "fit.npz"
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1)
        a = pm.Normal("a", 0, scale, shape=6)
        pm.Poisson("y", pm.math.exp(a), observed=[0, 1, 4, 2, 9, 3])
    first = pmep.fit(model=model, draws=0, checkpoint=path)["fit"]
    saved = dict(np.load(path))
    assert {name for name in saved if not name.startswith("call ")} == {"theta", "shift", "precision"}
    resumed = pmep.fit(model=model, draws=0, checkpoint=path)["fit"]
    assert len(resumed["hyper_objective"]) < len(first["hyper_objective"])
    # Both integrate by their own fits: as closely as an integral is computed.
    np.testing.assert_allclose(resumed["log_evidence"], first["log_evidence"], atol=1e-3)


@pytest.mark.parametrize("method", ["ep", "vg"])
def test_a_checkpoint_of_another_fit_is_no_start(method, tmp_path):
    def fitted(observed=(1, 0, 2, 4), **options):
        with pm.Model():
            s = pm.HalfNormal("s", 1)
            V, U = pm.Normal("V", 0, s, shape=(4, 1)), pm.Normal("U", 0, 1, shape=(1, 1))
            f = V[:, 0] if method == "ep" else (V @ U.T)[np.arange(4), np.zeros(4, int)]
            pm.Poisson("y", pm.math.exp(f), observed=list(observed))
            return pmep.fit(method, draws=0, progressbar=False, checkpoint=tmp_path / "fit.npz", **options)["fit"]

    first = fitted(hyper="fixed", start={"s": 1.0})
    assert fitted(hyper="fixed", start={"s": 1.0})["n_iter"] <= first["n_iter"]
    with pytest.raises(ValueError, match=r"is of a fit with another start.*name another file, or remove it"):
        fitted(hyper="fixed", start={"s": 0.3})
    with pytest.raises(ValueError, match=r"another hyper="):
        fitted(start={"s": 1.0})
    with pytest.raises(ValueError, match=r"another set of data"):
        fitted(observed=(1, 0, 2, 5), hyper="fixed", start={"s": 1.0})


def test_no_path_saves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nowhere = Checkpoint(None)
    nowhere.save(last=True, theta=np.zeros(1))
    assert nowhere.load() is None
    assert not list(tmp_path.iterdir())


def test_folders_that_there_are_not_and_files_of_others(tmp_path):
    with pytest.raises(FileNotFoundError, match="lies in a folder that does not exist; create it"):
        Checkpoint(tmp_path / "nowhere" / "fit.npz")
    for content in (b"", b"something else"):
        (tmp_path / "other.npz").write_bytes(content)
        with pytest.raises(ValueError, match="is a file that no fit has written"):
            Checkpoint(tmp_path / "other.npz").load()
