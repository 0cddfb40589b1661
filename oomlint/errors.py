"""The one error type whose message is for users; the command line prints it and exits with 2."""


class OomlintError(Exception):
    """One sentence that names the file, the key or the option, and the way out."""
