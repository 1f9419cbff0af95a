"""Measure a section of a page anew: ``python -m docs.benchmarks NAME [options]``; without a name, list all scripts."""

import importlib
import sys
from pathlib import Path


def main() -> None:
    """Run a script, or list what there is."""
    scripts = {p.stem: p for p in sorted(Path(__file__).parent.glob("*.py")) if not p.stem.startswith("_")}
    if len(sys.argv) < 2 or sys.argv[1] not in scripts:
        print(__doc__)
        for name, path in scripts.items():
            summary = path.read_text(encoding="utf-8").removeprefix('"""').partition("\n")[0].rstrip('"')
            print(f"  {name:22}{summary}")
        sys.exit(len(sys.argv) > 1)
    name = sys.argv.pop(1)
    sys.argv[0] = str(scripts[name])
    importlib.import_module(f"docs.benchmarks.{name}").main()


if __name__ == "__main__":
    main()
