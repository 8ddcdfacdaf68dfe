"""The lab: everything that is built on the reference, room by room. No file of the reference
imports it; what a user asks of it by name is found in minise/by_name.py.
"""
