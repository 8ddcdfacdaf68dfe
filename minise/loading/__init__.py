"""Checkpoints: config.json, the files of a folder or the hub, weights as stored, in 4 bits or split
over processes, and the choice of device and dtype.

plugin.py loads optional packages and the user's own files by name, identity.py hashes everything
that a result depends on. This room may import `exact` and the core.
"""
