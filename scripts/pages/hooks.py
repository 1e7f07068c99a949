"""What MkDocs asks for while it builds the site (`hooks` of mkdocs.yml)."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.pages.links import OUTSIDE, ROOT, with_site_links
from scripts.pages.refusals import index, listed, refusals

_REFUSALS = refusals()

#: What a browser fetches by itself when it opens a page; links are the reader's to follow.
_FETCHED = re.compile(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expand `nav`: a folder in `nav` stands for its pages, the index first."""
    config.nav = _expanded(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are no files of docs/: those from outside, and the index of errors."""
    made = {page: (ROOT / source).read_text() for source, page in OUTSIDE.items()}
    made["errors/index.md"] = index({path.stem: _title(path.read_text()) for path in _pages("errors")}, _REFUSALS)
    for page, content in made.items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the site has them; behind a page about errors, what these say."""
    folder, _, name = page.file.src_uri.rpartition("/")
    messages = listed(name.removesuffix(".md"), _REFUSALS) if folder == "errors" else ""
    return with_site_links(markdown, page.file.src_uri) + messages


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuses a page that would ask the network for anything."""
    if (fetched := _FETCHED.search(output)) is not None:
        raise PluginError(f"{page.file.src_uri} is not to be had offline: {fetched[0]}")
    return output


def _expanded(nav: Any) -> Any:
    match nav:
        case list():
            return [_expanded(entry) for entry in nav]
        case dict():
            return {title: _folder(entry) if _is_folder(entry) else _expanded(entry) for title, entry in nav.items()}
    return nav


def _is_folder(entry: Any) -> bool:
    return isinstance(entry, str) and entry.endswith("/")


def _folder(name: str) -> list[str]:
    return [f"{name}index.md", *(f"{name}{path.name}" for path in _pages(name) if path.name != "index.md")]


def _pages(folder: str) -> list[Any]:
    return sorted((ROOT / "docs" / folder).glob("*.md"))


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")
