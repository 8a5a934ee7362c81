"""Twilio Media Streams: telephone calls that come in as JSON."""
