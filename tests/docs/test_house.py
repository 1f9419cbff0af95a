"""The counts of the house on its page are those that the script prints."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "contributing" / "architecture.md"


def test_files_and_upward_calls_of_fits():
    """Of a process of its own, with PyMC 6: under PyMC 5 functions have other bodies."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w ]+) \| [^|]* \| (\d+) / (\d+) \| (\d+) / (\d+) \|$", text, re.MULTILINE)
    shown = {(name, first, climbs, again, fewer) for name, first, again, climbs, fewer in rows}
    script = [sys.executable, "-W", "ignore", "-m", "docs.contributing.house"]
    done = subprocess.run(script, capture_output=True, text=True, check=True, cwd=PAGE.parents[2])
    found = re.findall(r"^\| ([\w ]+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", done.stdout, re.MULTILINE)
    assert shown == set(found)
