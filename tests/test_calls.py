"""What the calls that fit share."""

import io
from contextlib import redirect_stderr

from pymc_ep import calls


def shown(tell, monkeypatch, seconds=-1.0, enabled=True):
    """Return the last line of the bar that `tell` leaves."""
    monkeypatch.setattr(calls, "_SILENT_SECONDS", seconds)
    with redirect_stderr(io.StringIO()) as out, calls.progress("ep", enabled) as report:
        tell(report)
    return out.getvalue().strip().split("\r")[-1]


def test_iterations_are_counted_where_the_end_is_unknown(monkeypatch):
    def tell(report):
        for _ in range(7):
            report(-12.5, 1e-3)

    line = shown(tell, monkeypatch)
    assert line.startswith("EP ")
    assert "7/?" in line and "objective -12.5" in line


def test_phases_of_known_length_count_what_is_done(monkeypatch):
    def tell(report):
        report(-20.0, 1.0)
        report.phase("integrating", total=120)
        for _ in range(3):
            report(-12.5, 1e-3)
            report(-12.0, 1e-9)
            report.advance()

    line = shown(tell, monkeypatch)
    assert line.startswith("EP, integrating")
    assert "3/120" in line and "objective -12" in line and "change 1e-09" in line


def test_a_phase_without_values_yet(monkeypatch):
    line = shown(lambda report: report.phase("searching"), monkeypatch)
    assert "EP, searching" in line and "objective" not in line


def test_nothing_is_shown_of_short_fits_nor_unasked(monkeypatch):
    def tell(report):
        report.phase("integrating", total=2)
        report(-1.0, 1.0)
        report.advance()

    assert shown(tell, monkeypatch, seconds=1e3) == ""
    assert shown(tell, monkeypatch, enabled=False) == ""
