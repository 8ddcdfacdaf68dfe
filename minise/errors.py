"""The one exception that a user can cause."""


class InputError(ValueError):
    """Unusable input. The message is one line: what is wrong, where, and how to mend it.

    The command line prints it and exits with status 2; library callers catch it as a ValueError.
    """
