"""`tutti lm train`, `tutti lm prune` and `tutti lm perplexity`, and the choices of training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from model.lm.language_model import LanguageModel
from tutti_asr_lab.commands.lm import lm
from tutti_asr_lab.training.language_model.train import TrainingOptions, train

HOUSE = ["Turn on the light!", "Turn off the light.", "Turn on the 2 lamps", "Is the light on?"]
SEA = ["Call me Ishmael.", "The whale, the white whale!", "The sea had jeeringly kept his body up"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(lm, [str(argument) for argument in arguments])


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, Path]:
    files = {"house": HOUSE, "sea": SEA, "asked": ["turn the light on", "light the lamp"]}
    paths = {name: tmp_path / f"{name}.txt" for name in files}
    for name, lines in files.items():
        paths[name].write_text("\n".join(lines) + "\n", encoding="utf-8")
    return paths


def test_a_trained_model_predicts_its_text_and_is_measured(texts: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "house.arpa.gz"
    assert run("train", texts["house"], "--out", out, "--order", 3, "--mix", "none").exit_code == 0
    model = LanguageModel.load(out)
    assert model.order == 3
    assert "lamps" in model
    assert "two" in model
    assert sum(model.score(["turn", "on", "the", "light"])) > sum(model.score(["light", "the", "on", "turn"]))
    result = run("perplexity", out, texts["house"], texts["sea"])
    rows = {line.split()[0]: line.split()[1:] for line in result.output.splitlines()[1:]}
    assert rows["house.txt"][:3] == ["4", "17", "0.00%"]
    assert float(rows["house.txt"][3]) < float(rows["sea.txt"][3])


def test_a_manifest_is_measured_by_source(texts: dict[str, Path], tmp_path: Path) -> None:
    out, manifest = tmp_path / "house.arpa", tmp_path / "rows.jsonl"
    run("train", texts["house"], "--out", out, "--order", 2, "--mix", "none")
    rows = [{"audio": "x", "text": "the light", "source": source} for source in ("one", "two", "one")]
    manifest.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    lines = run("perplexity", out, manifest).output.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [["one", "2", "4"], ["two", "1", "2"]]


def test_a_manifest_of_chinese_text_is_measured_by_characters(tmp_path: Path) -> None:
    text, out, manifest = tmp_path / "text.txt", tmp_path / "characters.arpa", tmp_path / "rows.jsonl"
    text.write_text("打 开 空 调\n关 闭 空 调\n", encoding="utf-8")
    run("train", text, "--as-written", "--out", out, "--order", 2)
    manifest.write_text(json.dumps({"audio": "x", "text": "打开空调", "source": "said"}), encoding="utf-8")
    assert run("perplexity", out, manifest).output.splitlines()[1].split()[:4] == ["said", "1", "4", "0.00%"]


def test_weights_are_given_by_file_or_tuned_on_a_held_out_text(texts: dict[str, Path], tmp_path: Path) -> None:
    models = {}
    for name, arguments in {
        "house": [f"{texts['house']}:9", f"{texts['sea']}:1"],
        "sea": [f"{texts['house']}:1", f"{texts['sea']}:9"],
        "tuned": [texts["house"], texts["sea"], "--held-out", texts["asked"]],
        "one": [texts["house"], texts["sea"], "--mix", "none"],
    }.items():
        result = run("train", *arguments, "--out", tmp_path / f"{name}.arpa")
        assert result.exit_code == 0, result.output
        models[name] = LanguageModel.load(tmp_path / f"{name}.arpa")
    asked = ["turn the light on", "light the"]
    by_fit = sorted(models, key=lambda name: models[name].perplexity(asked).perplexity)
    assert by_fit.index("house") < by_fit.index("sea")
    assert by_fit.index("tuned") < by_fit.index("one")


def test_the_vocabulary_keeps_the_most_frequent_words(texts: dict[str, Path]) -> None:
    options = TrainingOptions(order=2, vocabulary_size=3)
    model = LanguageModel.build(train([texts["house"]], options, print))
    assert model.words == ("<unk>", "<s>", "</s>", "light", "on", "the")
    found = model.perplexity(["turn on the light"])
    assert found.unknown == 1


def test_cut_offs_and_pruning_make_a_model_smaller(texts: dict[str, Path]) -> None:
    sizes = [
        [len(table) for table in train([texts["house"]], options, print).tables]
        for options in (
            TrainingOptions(order=3),
            TrainingOptions(order=3, min_counts=(1, 1, 2)),
            TrainingOptions(order=3, threshold=0.02),
        )
    ]
    assert sizes[0][0] == sizes[1][0] == sizes[2][0]
    assert sizes[0][1] == sizes[1][1]
    assert sizes[0][2] > sizes[1][2] > 0
    assert sizes[0][1] > sizes[2][1]


def test_a_model_is_pruned_further(texts: dict[str, Path], tmp_path: Path) -> None:
    large, small = tmp_path / "large.arpa", tmp_path / "small.arpa.gz"
    assert run("train", texts["house"], "--out", large, "--mix", "none").exit_code == 0
    result = run("prune", large, "--threshold", 0.02, "--digits", 2, "--out", small)
    assert result.exit_code == 0, result.output
    models = [LanguageModel.load(path, cache_dirs=[]) for path in (large, small)]
    assert models[0].words == models[1].words
    assert len(models[1].trie.word) < len(models[0].trie.word)
    assert run("prune", tmp_path / "none.arpa", "--threshold", 1, "--out", small).exit_code == 1


def test_counts_of_pairs_are_mixed_in(texts: dict[str, Path], tmp_path: Path) -> None:
    counts = tmp_path / "web.counts"
    counts.write_text("the 100\nkettle 10\non 50\nthe kettle 9\n", encoding="utf-8")
    out = tmp_path / "mixed.arpa"
    assert run("train", f"{texts['house']}:1", f"{counts}:1", "--out", out).exit_code == 0
    model = LanguageModel.load(out)
    after_the = model.score(["the", "kettle"], eos=False)[1]
    assert after_the > model.score(["on", "kettle"], eos=False)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.txt"], "cannot read"),
        (["empty.txt"], "has no words"),
        (["house.txt:1", "sea.txt"], "either every text must have a weight above 0"),
        (["house.txt:0", "sea.txt:1"], "either every text must have a weight above 0"),
        (["house.txt:1", "--held-out", "sea.txt"], "weights and --held-out are mutually exclusive"),
        (["bad.counts:1", "sea.txt:1"], "bad.counts:2"),
        (["bad.counts"], "to mix counts and models with texts, give weights or --held-out"),
    ],
)
def test_unusable_texts_and_options_are_refused_by_name(
    texts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("?!\n")
    (tmp_path / "bad.counts").write_text("the 100\nthe kettle\n")
    result = run("train", *arguments, "--out", "out.arpa")
    assert result.exit_code == 1
    assert message in result.output
    assert not (tmp_path / "out.arpa").exists()


@pytest.mark.parametrize("counts", ["2,1", "x", "0"])
def test_cut_offs_are_checked(texts: dict[str, Path], tmp_path: Path, counts: str) -> None:
    assert (
        run("train", texts["house"], "--out", tmp_path / "x.arpa", "--min-count", counts, "--mix", "none").exit_code
        == 2
    )


def test_words_of_other_languages_stay_as_written(tmp_path: Path) -> None:
    text = tmp_path / "spanish.txt"
    text.write_text("el niño come\nmañana  el niño\n", encoding="utf-8")
    for option, words in (("--as-written", {"niño", "mañana"}), (None, {"nino", "manana"})):
        out = tmp_path / "spanish.arpa"
        assert (
            run("train", text, "--order", 2, "--out", out, "--mix", "none", *([option] if option else [])).exit_code
            == 0
        )
        assert words <= set(LanguageModel.load(out).words)


def test_texts_are_mixed_with_the_shipped_model_by_default(
    texts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "shipped.arpa"
    assert run("train", texts["sea"], "--mix", "none", "--out", shipped).exit_code == 0
    monkeypatch.setattr("model.decoder.SHIPPED_LM", shipped)
    result = run("train", texts["house"], "--out", tmp_path / "mixed.arpa")
    assert result.exit_code == 0, result.output
    assert "mixed with the shipped model, share 0.7" in result.output
    mixed = set(LanguageModel.load(tmp_path / "mixed.arpa").words)
    assert run("train", texts["house"], "--mix", "none", "--out", tmp_path / "own.arpa").exit_code == 0
    own, other = (set(LanguageModel.load(path).words) for path in (tmp_path / "own.arpa", shipped))
    assert mixed == own | other
    assert other - own
    for bad in ("shipped:1", "shipped:0", "shipped:x", "other:0.5", "shipped:nan"):
        assert run("train", texts["house"], "--mix", bad, "--out", tmp_path / "bad.arpa").exit_code == 2
    both = run("train", f"{texts['house']}:1", "--mix", "shipped:0.5", "--out", tmp_path / "bad.arpa")
    assert both.exit_code == 2


def test_chinese_text_keeps_its_digits_and_latin_words(tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "zh.arpa"
    text.write_text("打开WiFi第23页\n", encoding="utf-8")
    assert run("train", text, "--mix", "none", "--order", 2, "--out", out).exit_code == 0
    assert set(LanguageModel.load(out).words) >= {"打", "开", "wifi", "第", "二", "三", "页"}


def test_tags_of_toolkits_are_not_words_in_any_spelling(tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "marks.arpa"
    text.write_text("<s> cafe\u0301 <unk> </s>\ncaf\u00e9 [UNK]\n", encoding="utf-8")
    assert run("train", text, "--as-written", "--order", 2, "--out", out).exit_code == 0
    assert LanguageModel.load(out).words == ("<unk>", "<s>", "</s>", "caf\u00e9")
    assert run("train", text, "--mix", "none", "--order", 2, "--out", out).exit_code == 0
    assert LanguageModel.load(out).words == ("<unk>", "<s>", "</s>", "cafe")
