"""A server whose model can fail, hang or end its thread: `python faulty_server.py SETTINGS` (JSON).

`constants` of the settings are other values for constants of the product, by module and name.
"""

import json
import sys
import time
from importlib import import_module

import numpy as np

from server import serve
from server.models.loading import LoadedModel
from server.settings import Settings
from tests.support.servers.recognizers.spelling import CONFIG, SpellingModel, spelling_decoder

FATAL, HANGING = -1, -2  # samples of audio that no other test uses


class Lost(BaseException):
    """Ends the model thread; an `Exception` would fail one batch only."""


class FaultyModel(SpellingModel):
    """Raises `Lost` on a sample `FATAL`, and hangs on a sample `HANGING`."""

    def step(self, inputs, state):
        if (inputs == FATAL).any():
            raise Lost("the device is gone")
        while (inputs == HANGING).any():
            time.sleep(1_000)
        return super().step(inputs, state)


def audio(sample):
    """One step of audio of one value."""
    return np.full(CONFIG.step_samples, sample, np.int16)


if __name__ == "__main__":
    serve.load_served = lambda _: ([LoadedModel.of(FaultyModel(), spelling_decoder())], {})
    given = json.loads(sys.argv[1])
    for name, value in given.pop("constants", {}).items():
        module, _, constant = name.rpartition(".")
        setattr(import_module(module), constant, value)
    sys.exit(serve.run(Settings(**given)))
