"""The verbs of the `bytelm` command, one module each.

The first line of a module is "Group: summary." for `bytelm --help`. Its function of the module's name is the verb: its
annotations and docstring are the options and their help. A module may also have `main`, which takes the words after the
verb instead; `ENVIRONMENT`, variables to set before PyTorch loads; and `OUT_OF_MEMORY`, the advice to print when memory
runs out.
"""
