"""Free memory as the files of a control group tell it."""

import pytest

from pymc_ep.numerics import memory


@pytest.mark.parametrize(
    ("limit", "used", "cached", "free"),
    [
        (1000, 700, 200, 500),  # 500 are in use, besides a cache that can be reclaimed
        (1000, 700, 0, 300),
        (1000, 1100, 50, 0),  # a limit that was lowered since
        ("max", 700, 200, None),
    ],
)
def test_reclaimable_caches_of_a_control_group_are_free(limit, used, cached, free, tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.stat").write_text(f"anon 17\nfile 900\ninactive_file {cached}\nactive_file 3\n")
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    assert memory._free_of_group() == free
    monkeypatch.setattr(memory, "_free_of_machine", lambda: 400)
    assert memory._free_memory() == (400 if free is None else min(400, free))
