"""The commands. NAME.py is `minise NAME`: its docstring is the help, a frozen dataclass `Options`
has the options, and `run(options)` does the work and returns the exit status. cli.py makes a parser
of the class and imports NAME.py when that command is called; its table has a line for each.

This is the top of the house: it may import every other room, and no room imports it.
"""
