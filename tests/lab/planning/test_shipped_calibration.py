"""The shipped calibration is of the default server: its model, precision, decoder and language model."""

from model.acoustic import load_model
from model.decoder import decoder_of, second_passes_of
from server.settings import Settings
from tutti_asr_lab.planning.calibrate import searched
from tutti_asr_lab.simulation.calibration import shipped


def test_the_shipped_calibration_is_of_the_default_server():
    """After a change of these defaults run `tutti calibrate --out lab/tutti_asr_lab/simulation/calibration.json`."""
    settings, measured = Settings(), shipped().provenance
    assert settings.model is None
    assert settings.lm is None
    model = load_model(None, device=settings.device, precision=settings.precision, threads=1)
    decoder = searched(model, settings.decoder)
    assert (measured.model, measured.digest) == (model.config.name, model.digest)
    assert (measured.precision, measured.device) == (model.precision, str(model.device))
    assert set(shipped().passes) == set(second_passes_of(model.facts, decoder_of(model.facts)))
    assert (measured.decoder, measured.lm) == (decoder, "built-in" if decoder == "beam" else "off")
