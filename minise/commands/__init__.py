"""The commands, one file each: its docstring and EXAMPLE are the help, and it has
add_options(parser) and run(args), which returns the exit status.

A parsed namespace stays in this package. `run` itself imports what takes long to import, so that
`minise COMMAND --help` does not wait for torch.
"""
