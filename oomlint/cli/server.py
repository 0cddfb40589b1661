"""`oomlint server`: the language server for editors, over stdin and stdout or a port."""

from __future__ import annotations

from importlib.util import find_spec

import click

from oomlint.errors import OomlintError


@click.command()
# Editors' clients add this flag on their own account; it names what the server does anyway.
@click.option("--stdio", is_flag=True, hidden=True)
@click.option("--tcp", is_flag=True, help="Wait for one client at a port instead.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Of the port.")
@click.option("--port", default=2087, show_default=True, type=click.IntRange(0, 65535))
def server(stdio: bool, tcp: bool, host: str, port: int) -> None:
    """Serve an editor over the language server protocol (stdin and stdout)."""
    if find_spec("pygls") is None:
        raise OomlintError(
            "`oomlint server` needs the language server extra; "
            'install it with `pip install "oomlint[lsp]"`'
        )
    if stdio and tcp:
        raise OomlintError("`--stdio` and `--tcp` exclude each other; name one of them")
    from oomlint.lsp import features

    if tcp:
        features.serve_tcp(host, port)
    else:
        features.serve()
