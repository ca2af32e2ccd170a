"""The verbs of the `bytelm` command, one module each.

The first line of a module is "Group: summary." for `bytelm --help`. Its function `main` takes the words after the verb.
It may also have `ENVIRONMENT`, variables to set before PyTorch loads, and `OUT_OF_MEMORY`, the advice to print when
memory runs out.
"""
