"""The entry point of the command `bytelm`: from its first line on, Ctrl-C ends the command without a traceback."""

# Built in, while the module `signal` takes milliseconds to import.
import _signal  # type: ignore[import-not-found]  # without annotations

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # a shell may ignore it
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # until `pipelines.cli.process.prepare` sets its handler


def main() -> int:
    """Run the command line of this process and return its exit status."""
    from pipelines.cli.dispatch import main

    return main()
