"""An engine in another process: frames on a socket, the engine's side, and the front end's side."""
