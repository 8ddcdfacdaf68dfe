"""`python -m tools.bench`: ways.py."""

from tools.bench.ways import main

main()
