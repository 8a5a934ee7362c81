"""An engine in another process: frames on a socket, the half of the engine, and the half of a front end."""
