"""`tutti model fetch`: download a published model, check its digest, unpack and examine it."""
