"""`minise bench` and `minise bits`: time the engines and their peers, and measure bits.

measure.py times engines and the library's ways (peers.py) on prompts of workloads.py, generating.py
times text, plot.py draws how time grows, bits.py measures linear layers. This room may import every
room but commands.
"""
