"""The commands `ask` and `verify`, and the command line. NAME.py is `minise NAME`: its docstring is
the help, a frozen dataclass `Options` has the options, and `run(options)` does the work and returns
the exit status. cli.py makes a parser of the class; by_name.py has a line for each command, those
of the lab too. The lab's commands share options.py and terminal.py, its evaluation counted.py and
result.py.
"""
