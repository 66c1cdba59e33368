"""Puts the gantry program into the wheel, if there is one: GANTRY_BINARY, or a build of the checkout around."""

import os
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def program(root: Path) -> "Path | None":
    named = os.environ.get("GANTRY_BINARY")
    if named:
        path = Path(named).resolve()
        if not path.is_file():
            raise SystemExit(f"GANTRY_BINARY names {path}, which is no file")
        return path
    builds = (root.parent / "target" / profile / "gantry" for profile in ("dist", "release"))
    return next((path for path in builds if path.is_file()), None)


class BinaryHook(BuildHookInterface):
    def initialize(self, version: str, build_data: "dict[str, Any]") -> None:
        binary = program(Path(self.root))
        if version == "editable" or binary is None:
            return
        build_data["force_include"][str(binary)] = "gantry/bin/gantry"
        build_data["pure_python"] = False
        platform = os.environ.get("GANTRY_WHEEL_PLATFORM") or sysconfig.get_platform()
        # A dot separates several platforms, as in the names of wheels.
        if "GANTRY_WHEEL_PLATFORM" not in os.environ:
            platform = platform.replace("-", "_").replace(".", "_")
        build_data["tag"] = "py3-none-" + platform
