"""Proofs on symbols, and which numbers of rows share bits here."""
