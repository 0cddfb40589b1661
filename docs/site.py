"""What mkdocs runs while it builds the site: its first page, its navigation, its outward links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from oomlint.rule import FAMILIES, REPOSITORY

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?P<open>!?\[[^\]]*\]\()(?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")
# Code is no place for links.
CODE = re.compile(r"(?ms)^(?P<fence>`{3,}).*?^(?P=fence)[ \t]*$|(?P<tick>`+)[^`].*?(?P=tick)")
# Tabs of the site with their pages in the order of reading; a page that stands in none of them
# joins the last one by itself.
TABS = {
    "Use": ("command-line", "settings", "rules", "ci", "editors", "flake8", "api"),
    "Measure": ("verify", "measure", "guard", "record", "accuracy", "myths", "claims"),
    "Extend": ("model", "effects", "plugins"),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds README.md as the first page."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    alone = "---\nhide:\n  - navigation\n---\n\n"
    files.append(File.generated(config, "index.md", content=alone + readme))
    config.nav = navigation(sorted(file.src_uri for file in files.documentation_pages()))
    return files


def navigation(pages: list[str]) -> list[dict[str, Any]]:
    """All pages but the first, by tab; the rules by family, under their index."""
    rules = [page for page in pages if page.startswith("rules/")]
    left = [page for page in pages if page not in rules and page != "index.md"]
    nav: list[dict[str, Any]] = [{"Start": ["index.md"]}]
    for tab, names in TABS.items():
        nav.append({tab: [f"{name}.md" for name in names if f"{name}.md" in left]})
    placed = {page for entry in nav for group in entry.values() for page in group}
    nav[-1]["Extend"] += [page for page in left if page not in placed]
    families = [
        {f"{digit}xx: {title}": [page for page in rules if page.startswith(f"rules/oom{digit}")]}
        for digit, title in FAMILIES.items()
    ]
    nav.insert(2, {"Rules": ["rules.md", *families]})
    nav[1]["Use"].remove("rules.md")
    return nav


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links to what is no page of the site to the file in the repository."""
    # A title is one only at the top.
    markdown = re.sub(r"\A\s*<!--.*?-->\s*", "", markdown, flags=re.DOTALL)
    folder = (ROOT / "docs" / page.file.src_uri).parent
    if page.file.src_uri == "index.md":
        folder = ROOT

    def led(match: re.Match[str]) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        path = (folder / target).resolve()
        try:
            inside = path.relative_to(ROOT / "docs").as_posix()
        except ValueError:
            inside = ""
        if files.get_file_from_path(inside) is None:
            target = f"{REPOSITORY}/blob/main/{path.relative_to(ROOT).as_posix()}"
        elif folder == ROOT:
            target = inside
        return f"{match['open']}{target}{anchor})"

    parts, position = [], 0
    for code in CODE.finditer(markdown):
        parts += [LINK.sub(led, markdown[position : code.start()]), code[0]]
        position = code.end()
    return "".join([*parts, LINK.sub(led, markdown[position:])])
