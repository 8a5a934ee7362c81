"""`tutti serve`: run the server until it is stopped."""

from __future__ import annotations

import typer

from server.cli.errors import EXIT_ADDRESS, EXIT_FAILED, fail
from server.cli.options import announce_compilation


def serve(context: typer.Context) -> None:
    """Serve /v1/listen, Deepgram-compatible; its parameters are described at /docs.

    A server can serve several models: clients choose by name or language.

    Every option has a TUTTI_… variable, such as TUTTI_MAX_STREAMS. Some settings have only a variable:
    docs/settings.md lists all of them.
    """
    settings = context.obj
    from model.errors import ModelError
    from server.errors import AddressError, SettingsError
    from server.models.whisper import check_whisper
    from server.processes.layout import with_processes
    from server.text.own_forms import own_forms_of

    try:
        own_forms_of(settings.written_forms)  # a bad file ends the start before models are loaded
        check_whisper(settings)
        announce_compilation()
        settings = with_processes(settings)
        if settings.front_ends:  # a supervisor loads neither models nor the web framework
            from server.processes.supervisor import run as supervise

            code = supervise(settings)
        else:
            from server.serve import run

            code = run(settings)
    except (ModelError, SettingsError) as error:
        fail(error, status=EXIT_ADDRESS if isinstance(error, AddressError) else EXIT_FAILED)
    raise typer.Exit(code)
