"""Changes between a release and this tree: computed from the records, and those that only a person can tell."""

from __future__ import annotations

from dataclasses import dataclass, field

from server.tools.upgrading.releases import MetricForm, Release


@dataclass(frozen=True, slots=True)
class Notes:
    """What the records of two versions do not show. `meanings` and `renamed_settings`: by the name of a setting."""

    wire: tuple[tuple[str, str], ...]  # the change; what a client or an operator does
    meanings: dict[str, str] = field(default_factory=dict)
    behavior: dict[str, str] = field(default_factory=dict)  # by new setting: what its default changes
    renamed_settings: dict[str, str] = field(default_factory=dict)
    renamed_metrics: dict[str, str] = field(default_factory=dict)


NOTES = {
    "0.1.0": Notes(
        wire=(
            (
                "Features and parameters that the server does not have are refused by name, not ignored",
                "leave them out, or start the server with `--lenient-features`",
            ),
            (
                "`/admin` is closed without an admin key",
                "set `TUTTI_ADMIN_KEYS_FILE`, or `TUTTI_ADMIN_LOCAL=true` for requests from the same machine",
            ),
            ("`/redoc` and `/docs/oauth2-redirect` are gone", "use `/docs`"),
            (
                "The distribution is `tutti-asr`, and needs torch only for GPUs and precisions other than int8",
                "uninstall `tutti`, install `tutti-asr`, or `tutti-asr[torch]`",
            ),
            (
                "The client is `tutti-asr-client`, imported as `tutti_asr_client`; it was imported as `clients`",
                "change the import",
            ),
            (
                "Uploads have places of their own, and take none of a live stream",
                "size `TUTTI_MAX_STREAMS` for live streams alone",
            ),
        ),
        meanings={"max_streams": "counts channels: a stream with two channels counts twice, an upload not at all"},
        behavior={
            "decoder": "beam search is the default; `greedy` is what 0.1.0 did",
            "front_ends": "on four cores and more, several processes; `0` is one process, as in 0.1.0",
        },
        renamed_metrics={"tutti_state_pool_slots_total": "tutti_state_pool_slots"},
    )
}
"""By the version that is upgraded from. Every entry stands in CHANGELOG.md, too; a test holds that."""


def removed_settings(old: Release, new: Release) -> list[str]:
    """Return settings that no longer exist."""
    return [name for name in old.settings if name not in new.settings]


def other_defaults(old: Release, new: Release) -> dict[str, tuple[object, object]]:
    """Return the old and the new default of each setting whose default is another one."""
    both = [name for name in old.settings if name in new.settings]
    return {name: (old.settings[name], new.settings[name]) for name in both if old.settings[name] != new.settings[name]}


def removed_metrics(old: Release, new: Release) -> list[str]:
    """Return metrics that no longer exist under their name."""
    return [name for name in old.metrics if name not in new.metrics]


def other_forms(old: Release, new: Release) -> dict[str, tuple[MetricForm, MetricForm]]:
    """Return the old and the new form of each metric whose type or labels are others, as far as both are known."""
    found = {}
    for name, before in old.metrics.items():
        after = new.metrics.get(name)
        if after is None:
            continue
        labels_known = before.labels is not None and after.labels is not None
        if before.type != after.type or (labels_known and before.labels != after.labels):
            found[name] = (before, after)
    return found


def removed_parameters(old: Release, new: Release) -> list[str]:
    """Return query parameters of `/v1/listen` that had an effect and no longer do."""
    return [name for name in old.parameters if name not in new.parameters]
