"""`python -m minise`, and the command `minise`."""

import os
import sys

from minise.commands import terminal

terminal.end_on_interrupt()  # what is imported below takes a while
if "--equal-bits" in sys.argv:
    from minise.by_name import from_lab

    from_lab("strict MKL")()  # before torch starts
if "OMP_WAIT_POLICY" not in os.environ:  # waiting threads give up their core soon
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
# In bfloat16 the CPU's kernels are made for a number of rows and kept, in two caches of 1,024. Each
# takes half a megabyte, and nearly each question has another number of rows.
for cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(cache, "32")

from minise.commands.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
