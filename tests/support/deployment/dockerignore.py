"""Reader of .dockerignore, whose rules differ from git's: a pattern applies to everything below its match.

Source: https://docs.docker.com/build/concepts/context/#dockerignore-files
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

_PARTS = re.compile(r"\*\*/|\*\*|\*|\?|\[[^\]]+\]|[^*?\[]+")
_REGEX_OF = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class DockerIgnore:
    """Patterns of one file in order; the last match decides."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self._patterns = [
            (line.startswith("!"), _compiled(line.removeprefix("!")))
            for line in lines
            if line and not line.startswith("#")
        ]
        self.tops = sorted({line[1:].split("/")[0] for line in lines if line.startswith("!")})
        """First components of the included paths."""

    def __call__(self, path: str) -> bool:
        """Whether a file, relative to the root of the context, is sent to the builder."""
        own = PurePosixPath(path)
        names = [path, *(parent.as_posix() for parent in own.parents if parent != PurePosixPath())]
        included = True
        for includes, pattern in self._patterns:
            if any(pattern.fullmatch(name) for name in names):
                included = includes
        return included


def _compiled(pattern: str) -> re.Pattern[str]:
    parts = _PARTS.findall(pattern.strip("/"))
    return re.compile("".join(_REGEX_OF.get(part) or (part if part[0] == "[" else re.escape(part)) for part in parts))
