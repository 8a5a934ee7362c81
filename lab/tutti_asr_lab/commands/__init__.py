"""Commands that the lab adds to `tutti`: train, quantize, synthesize, lm, plan, calibrate."""
