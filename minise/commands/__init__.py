"""The commands. NAME.py has the options of a command: its docstring and EXAMPLE are the help,
add_options(parser) adds them, and request(args) makes one frozen request of them. Nothing else sees
the parsed namespace. run_NAME.py does the work: run(request) returns the exit status. It is
imported when the command runs, so `minise COMMAND --help` does not wait for torch.

This is the top of the house: it may import every other room, and no room imports it.
"""
