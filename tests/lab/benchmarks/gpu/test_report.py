"""gpu.json and the page rendered from it."""

import json

import pytest

from tutti_asr_lab.benchmarks.gpu import records, report
from tutti_asr_lab.benchmarks.gpu.records import Results, Row, Run

DEVICE = {
    "device": "NVIDIA H100 80GB HBM3", "driver": "580.1", "versions": {"torch": "2.11.0"}, "python": "3.12.1",
    "commit": "abc", "date": "2026-11-23T00:40:00+00:00", "clocks_before": {"clocks.sm": "1980 MHz"},
}  # fmt: skip
STEP = {"network": "ds2-7x1760", "rung": "persistent"}


def synthetic():
    rows = [
        Row(0, "probe", {"what": "copy"}, {"us": 715.8, "us_p10": 1.0, "us_p90": 2.0, "gb_s": 3001.5}),
        Row(0, "bits", {"what": "alone = in company", "network": "tiny", "rung": "graph", "rows": 2}, {"equal": True}),
        Row(0, "bits", {"what": "alone = in company", "network": "tiny", "rung": "graph", "rows": 8}, {"equal": False}),
        Row(0, "steps", STEP | {"rows": 1}, {"us": 141.25}),
        Row(0, "steps", STEP | {"rows": 8}, {"us": 260.5, "share": 0.359}),
        Row(0, "steps", STEP | {"rows": 1, "how": "host to host"}, {"us_p50": 170.0, "us_p98": 190.5}),
        Row(
            0,
            "recurrence",
            {"hidden": 1760, "how": "persistent", "frames": 2, "rows": 1},
            {"us": 9.0, "us_a_frame": 4.5},
        ),
        Row(0, "streams", STEP | {"streams": 10}, {}, "RuntimeError: a | b"),
    ]
    return Results([Run("1", DEVICE)], rows)


def test_rows_of_a_batch_are_columns_of_the_table():
    table = report.tables(synthetic(), ["steps"])
    assert "| network | rung | how | 1 | 8 |" in table
    assert "| ds2-7x1760 | persistent |  | 141.2 | 260.5 (36%) |" in table
    assert "| ds2-7x1760 | persistent | host to host | 170 / 190.5 |  |" in table


def test_results_that_are_not_bit_identical_are_bold():
    assert "| alone = in company | tiny | graph | yes | **no** |" in report.tables(synthetic(), ["bits"])


def test_a_case_that_failed_is_listed_with_its_error():
    assert "| streams | network=ds2-7x1760 rung=persistent streams=10 | RuntimeError: a / b |" in report.page(
        synthetic()
    )


def test_a_refresh_changes_only_the_text_between_the_marks(tmp_path):
    document = tmp_path / "page.md"
    document.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", encoding="utf-8")
    report.refresh(synthetic(), document)
    text = document.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "260.5" in text


def test_a_document_without_marks_is_rejected(tmp_path):
    document = tmp_path / "page.md"
    document.write_text("nothing", encoding="utf-8")
    with pytest.raises(ValueError, match="are missing"):
        report.refresh(synthetic(), document)


def test_a_document_survives_a_round_trip_with_one_row_per_line(tmp_path):
    path = tmp_path / "gpu.json"
    records.write(synthetic(), path)
    assert records.read(path) == synthetic()
    assert len(path.read_text(encoding="utf-8").splitlines()) == len(synthetic().rows) + len(synthetic().runs) + 6
    assert json.loads(path.read_text(encoding="utf-8"))["rows"][0]["section"] == "probe"


def test_a_missing_document_is_empty_and_an_invalid_one_is_rejected(tmp_path):
    assert records.read(tmp_path / "gpu.json") == Results()
    (tmp_path / "gpu.json").write_text('{"runs": 3}', encoding="utf-8")
    with pytest.raises(ValueError, match="not a result file"):
        records.read(tmp_path / "gpu.json")


def test_a_later_row_replaces_the_same_case_unless_it_failed():
    first, again = Row(0, "steps", STEP, {"us": 1.0}), Row(1, "steps", STEP, {"us": 2.0})
    failed = Row(1, "steps", STEP, {}, "error")
    assert Results(rows=[first, again]).latest("steps") == [again]
    assert Results(rows=[first, failed]).latest("steps") == [first]
    assert Results(rows=[failed, first]).latest("steps") == [first]


def test_the_summary_has_the_plain_step_and_no_chunk_or_host_times():
    case = STEP | {"rows": 8}
    others = [case | {"steps": 8}, case | {"how": "host to host"}]
    rows = [Row(0, "steps", case, {"us": 150.0}), *(Row(0, "steps", other, {"us": 999.0}) for other in others)]
    summary = report.summary(Results([Run("2", DEVICE)], rows))
    assert "| 150 |" in summary
    assert "999" not in summary
