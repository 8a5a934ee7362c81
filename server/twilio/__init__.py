"""Twilio Media Streams: telephone calls that come in as JSON. Source: protocols.md, section 6."""
