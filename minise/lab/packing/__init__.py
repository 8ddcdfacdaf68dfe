"""Other people's packed rows, and the check of a decoder."""
