"""Wire protocols, one folder each; no protocol depends on another's folder except Twilio on Deepgram's."""
