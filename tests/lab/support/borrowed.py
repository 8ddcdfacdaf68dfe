"""The packages of this environment, lent to another one."""

import re
import sysconfig
from pathlib import Path


def borrow(folder: Path) -> Path:
    """Link to this environment's packages, minise itself left out, in a folder that can be the
    path of another environment: so torch need not be unpacked once more."""
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not re.match(r"(_?minise|pip|__editable__|__pycache__|.*\.pth$)", entry.name):
            (folder / entry.name).symlink_to(entry)
    return folder
