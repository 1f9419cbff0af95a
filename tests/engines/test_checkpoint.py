"""A fit writes its state and resumes from it."""

import numpy as np
import pymc as pm

import pymc_ep as pmep
from pymc_ep.engines import Checkpoint


def test_a_checkpoint_is_written_at_the_end_and_resumed_from(tmp_path):
    path = tmp_path / "fit.npz"
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1)
        a = pm.Normal("a", 0, scale, shape=6)
        pm.Poisson("y", pm.math.exp(a), observed=[0, 1, 4, 2, 9, 3])
    first = pmep.fit(model=model, draws=0, checkpoint=path)["fit"]
    saved = dict(np.load(path))
    assert set(saved) == {"theta", "shift", "precision"}
    resumed = pmep.fit(model=model, draws=0, checkpoint=path)["fit"]
    assert len(resumed["hyper_objective"]) < len(first["hyper_objective"])
    np.testing.assert_allclose(resumed["log_evidence"], first["log_evidence"], atol=1e-6)


def test_no_path_saves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nowhere = Checkpoint(None)
    nowhere.save(last=True, theta=np.zeros(1))
    assert nowhere.load() is None
    assert not list(tmp_path.iterdir())
