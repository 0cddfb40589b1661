"""Where `oomlint` and `python -m oomlint` begin: Ctrl-C is quiet from here on."""

import signal
from typing import NoReturn


def run() -> NoReturn:
    """The command line; until it is loaded, Ctrl-C ends the process as it ends any other."""
    held = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if held:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from oomlint.cli import main

    if held:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main()


if __name__ == "__main__":
    run()
