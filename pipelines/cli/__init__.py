"""The command line: dispatch, arguments, messages and errors."""
