"""Hooks of the documentation site (`mkdocs.yml`): pages from outside docs/, and links into the repository.

Documents link to each other and to sources by relative paths, as they stand in a checkout, where tests check them. The
site has the pages of docs/ and those of `PAGES`. A link between two of them becomes the address of the page; a link to
any other file becomes a link into the repository if `repo_url` is set, else the file's path in code type, because a
site built offline has no address for it. A link to a file that does not exist stays as it is and fails a strict build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {  # page of the site: file of the repository
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "clients.md": "clients/README.md",
    "deploy.md": "deploy/README.md",
    "recipes.md": "lab/tutti_asr_lab/training/recipes/README.md",
    "model-card.md": "model/weights/MODEL_CARD.md",
}
BLOCK = r"(?P<indent>^ *)```(?P<language>\w*) ?(?P<name>\S*)$(?P<code>.*?^(?P=indent)```$)"  # code, and a file's name
LINK = r"(?P<image>!?)\[(?P<text>(?:[^\]\[]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)"
BLOCK_OR_LINK = re.compile(f"{BLOCK}|{LINK}", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    for page, source in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Resolve the links of a page outside of its code blocks, and give blocks that are files their names as titles."""

    def replaced(found: re.Match[str]) -> str:
        if found["target"] is not None:
            return resolved(found, page, config, files)
        title = f' title="{found["name"]}"' if found["name"] else ""
        return f"{found['indent']}```{found['language']}{title}{found['code']}"

    return BLOCK_OR_LINK.sub(replaced, markdown)


def resolved(link: re.Match[str], page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a link for the site, unchanged where it is an address or names nothing."""
    source = PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    text, address = link["text"], urlsplit(link["target"])
    if address.scheme or not address.path:
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), address.path))
    if not (ROOT / path).exists():
        return link[0]
    on_site = {file: name for name, file in PAGES.items()} | {"docs/README.md": "index.md"}
    name = on_site.get(path, path.removeprefix("docs/"))
    if files.get_file_from_path(name) is not None:
        relative = posixpath.relpath(name, posixpath.dirname(page.file.src_uri) or ".")
        return f"{link['image']}[{text}]({relative}{'#' + address.fragment if address.fragment else ''})"
    if config.repo_url:
        return f"{link['image']}[{text}]({config.repo_url.rstrip('/')}/blob/main/{path})"
    return text if text.strip("`") == path else f"{text} (`{path}`)"
