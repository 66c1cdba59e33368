"""The gantry program: inside the wheel, named by GANTRY_BINARY, on the PATH, or built in the checkout."""

import os
import shutil
import sys
from pathlib import Path

from gantry._error import GantryError


def find() -> str:
    named = os.environ.get("GANTRY_BINARY")
    if named:
        return named
    here = Path(__file__).resolve().parent
    inside = here / "bin" / "gantry"
    if inside.is_file():
        return str(inside)
    checkout = here.parents[2] / "target"
    for profile in ("dist", "release", "debug"):
        built = checkout / profile / "gantry"
        if built.is_file():
            return str(built)
    # The script of this package has the same name.
    script = Path(sys.argv[0]).resolve() if sys.argv[0] else None
    scripts = Path(sys.executable).parent
    places = os.pathsep.join(p for p in os.environ.get("PATH", "").split(os.pathsep) if Path(p) != scripts)
    found = shutil.which("gantry", path=places)
    if found and Path(found).resolve() != script:
        return found
    raise GantryError(
        "there is no gantry program: install a wheel that contains it, build it with `cargo build --release`, or name it in "
        "GANTRY_BINARY"
    )


def main() -> None:
    try:
        program = find()
    except GantryError as error:
        raise SystemExit(str(error)) from None
    os.execv(program, [program, *sys.argv[1:]])
