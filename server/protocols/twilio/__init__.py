"""Twilio Media Streams: telephone calls as JSON over WebSockets."""
