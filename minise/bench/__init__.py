"""`minise bench`: the engines and whatever peers are installed, side by side in one run."""
