"""`python -m tests.proofs OUT`: run every proof of this folder; each writes its page below OUT."""

import importlib
import pkgutil
import sys
from pathlib import Path

_HERE = Path(__file__).parent


def main(out_folder: Path) -> None:
    """Run the proofs, one module after the other."""
    sys.path.insert(0, str(_HERE.parent))  # the proofs build on the tests' own builders
    out_folder.mkdir(parents=True, exist_ok=True)
    for found in pkgutil.iter_modules([str(_HERE)]):
        if not found.name.startswith("_"):
            print(f"proof: {found.name}", flush=True)
            importlib.import_module(f"proofs.{found.name}").main(out_folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
