"""`minise bench`: time the engines, and the peers that are installed, side by side."""
