"""`oomlint server`: the language server for editors, over stdin and stdout."""

from __future__ import annotations

from importlib.util import find_spec

import click

from oomlint.errors import OomlintError


@click.command()
# Editors' clients add this flag on their own account; it names what the server does anyway.
@click.option("--stdio", is_flag=True, hidden=True)
def server(stdio: bool) -> None:
    """Serve an editor over the language server protocol (stdin and stdout)."""
    if find_spec("pygls") is None:
        raise OomlintError(
            "`oomlint server` needs the language server extra; "
            'install it with `pip install "oomlint[lsp]"`'
        )
    from oomlint.lsp.server import serve

    serve()
