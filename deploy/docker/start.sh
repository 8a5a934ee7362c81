#!/bin/sh
# Gives the compiler's cache a place that can be written, which it insists on, and becomes the server, so that signals
# reach it. Where even that place cannot be written, the server compiles for ten seconds at its start and runs.
mkdir -p "$NUMBA_CACHE_DIR" 2>/dev/null && cp -Rp /opt/tutti/machine-code/. "$NUMBA_CACHE_DIR" 2>/dev/null
exec "$@"
