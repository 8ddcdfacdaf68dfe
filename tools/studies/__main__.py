"""Our studies: what they asked, and what the pages show of it.

python -m tools.studies                 writes every table and picture anew, from the records here
python -m tools.studies eval ...        as `minise eval`, which then has our experiments, too
python -m tools.studies report RUN      as `minise report`, likewise
"""

import sys
from pathlib import Path

from minise.commands import cli
from minise.lab.evaluation.experiments import EXPERIMENTS
from minise.lab.files import write_file
from tools.studies import decisions, real
from tools.studies.experiments import STUDIES


def write_all() -> None:
    written: dict[Path, str | bytes] = {**real.texts(), **real.pictures(), **decisions.texts()}
    for path, content in written.items():
        write_file(path, content)
        print(path)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        write_all()
    else:
        EXPERIMENTS.update(STUDIES)
        sys.exit(cli.main())
