"""The language server: what `oomlint check` says, as diagnostics and quick fixes in an editor."""
