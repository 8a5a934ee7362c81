"""Commands that the lab adds to `tutti`: train, quantize, synthesize, lm, plan, calibrate.

`server.cli` loads them, so it is imported first: a command imported alone would be loaded within its own import.
"""

import server.cli  # noqa: F401
