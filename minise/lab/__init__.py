"""The lab: what is built on the reference. No file of it imports this."""
