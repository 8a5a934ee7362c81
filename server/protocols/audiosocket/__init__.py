"""AudioSocket, the protocol of Asterisk: the audio of one call over TCP."""
