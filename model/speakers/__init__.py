"""Who speaks: vectors of voices from audio, their clustering live and after a recording."""
