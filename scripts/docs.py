#!/usr/bin/env python3
"""Checks and builds the handbook.

`check`, part of `make check`, reads text only. It refuses a link or anchor that does not exist, a page that is missing in the table of
contents, a README that is too long, a whole program that no doc test compiles, and the path of a folder that only one machine has.

`book`, run by `make docs`, builds the handbook with mdBook into target/book and checks the links of the built pages.
"""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BOOK = ROOT / "target" / "book"
SUMMARY = DOCS / "SUMMARY.md"
MDBOOK = "mdbook==0.5.4"
README_LINES = 150

FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^()\s>]*(?:\([^()]*\))?[^()\s>]*)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^(#{1,6}) +(.+?) *#* *$", re.MULTILINE)
# Paths that exist on one machine only.
MACHINE = re.compile(r"(?<![\w./~:-])/(?:home|root|work|Users)/[\w.-]+")


def main():
    if sys.argv[1:] == ["check"]:
        return report(check(), f"{len(pages())} pages, no broken link")
    if sys.argv[1:] == ["book"]:
        return build()
    print(f"usage: {sys.argv[0]} check|book", file=sys.stderr)
    return 2


def report(wrong, well):
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(well)
    return int(bool(wrong))


def check():
    files = pages()
    anchors = {file: anchors_of(file.read_text()) for file in files}
    wrong = [fault for file in files for fault in links(file, anchors) + folders(file)]
    return wrong + contents() + length() + untried()


def pages():
    """Returns every page: the handbook, and the pages outside of docs/."""
    beside = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")]
    return beside + sorted(DOCS.rglob("*.md")) + sorted((ROOT / "crates").glob("*/README.md"))


def links(file, anchors):
    wrong = []
    for number, target in targets(file.read_text()):
        place = f"{file.relative_to(ROOT)}:{number}"
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            continue
        there = (file.parent / unquote(parts.path)).resolve() if parts.path else file
        if not there.exists():
            wrong.append(f"{place}: {target} does not exist")
        elif not there.is_relative_to(ROOT):
            wrong.append(f"{place}: {target} leads out of the project")
        elif parts.fragment and there.suffix == ".md" and parts.fragment not in anchors.get(there, anchors_of(there.read_text())):
            wrong.append(f"{place}: {target}: the page has no such heading")
    return wrong


def targets(text):
    """Returns each link with its line number. Code holds no links."""
    prose = CODE.sub(blank, FENCE.sub(blank, text))
    return [(prose.count("\n", 0, link.start()) + 1, link[1]) for link in LINK.finditer(prose)]


def blank(found):
    return re.sub(r"[^\n]", " ", found[0])


def anchors_of(text):
    """Returns the anchors as GitHub and mdBook derive them: lower case, no punctuation, hyphens for spaces. A repeated heading gets -1."""
    found = {}
    for _, heading in HEADING.findall(FENCE.sub(blank, text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain.lower()))
        found[name] = found.get(name, -1) + 1
        if found[name]:
            found[f"{name}-{found[name]}"] = 0
    return set(found)


def contents():
    """Checks that the table of contents lists every page exactly once."""
    told = [(SUMMARY.parent / target).resolve() for _, target in targets(SUMMARY.read_text())]
    there = set(DOCS.rglob("*.md")) - {SUMMARY}
    wrong = [f"docs/SUMMARY.md: {file.relative_to(DOCS)} is missing" for file in sorted(there - set(told))]
    return wrong + [f"docs/SUMMARY.md: {file.relative_to(DOCS)} is named twice" for file in sorted(set(told)) if told.count(file) > 1]


def length():
    lines = len((ROOT / "README.md").read_text().splitlines())
    return [] if lines <= README_LINES else [f"README.md: must have at most {README_LINES} lines, got {lines}"]


def untried():
    """Checks that doc tests compile every Rust block, except those marked `rust,ignore`."""
    tried = set(re.findall(r'include_str!\("\.\./(docs/[^"]+)"\)', (ROOT / "src" / "lib.rs").read_text()))
    pages = {str(file.relative_to(ROOT)) for file in DOCS.rglob("*.md") if re.search(r"^```rust$", file.read_text(), re.MULTILINE)}
    return [f"{page}: src/lib.rs does not compile its Rust" for page in sorted(pages - tried)]


def folders(file):
    return [f"{file.relative_to(ROOT)}:{number}: {found[0]} exists on one machine only"
            for number, line in enumerate(file.read_text().splitlines(), 1) for found in MACHINE.finditer(line)]


def build():
    import crates
    import local
    import pypi

    wrong = check()
    if wrong:
        return report(wrong, "")
    try:
        [mdbook] = crates.install(MDBOOK)
    except pypi.Unavailable as missing:
        print(missing, file=sys.stderr)
        return 1
    staged = stage()
    shutil.rmtree(BOOK, ignore_errors=True)
    if subprocess.run([str(mdbook), "build", str(staged), "--dest-dir", str(BOOK)], env=local.environment()).returncode != 0:
        return 1
    return report(dead(), f"{(BOOK / 'index.html').relative_to(ROOT)}, no broken link")


def stage():
    """Copies the pages, and replaces links to files outside of the book by the names of the files."""
    staged = ROOT / "target" / "book-source"
    shutil.rmtree(staged, ignore_errors=True)
    shutil.copytree(DOCS, staged / "docs")
    shutil.copy(ROOT / "book.toml", staged)
    for page in DOCS.rglob("*.md"):
        (staged / page.relative_to(ROOT)).write_text(inside(page))
    return staged


def inside(page):
    """Returns the page's text without links to files outside of the book."""
    text = page.read_text()
    prose = CODE.sub(blank, FENCE.sub(blank, text))
    for link in reversed(list(LINK.finditer(prose))):
        parts = urlsplit(link[1])
        there = (page.parent / unquote(parts.path)).resolve()
        if not parts.scheme and parts.path and not there.is_relative_to(DOCS):
            words = text[link.start() + 1:link.start() + text[link.start():link.end()].index("](")]
            text = f"{text[:link.start()]}{words} (`{there.relative_to(ROOT)}`){text[link.end():]}"
    return text


class Links(HTMLParser):
    """Collects the links and the ids of an HTML page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if attributes.get("id"):
            self.ids.add(attributes["id"])
        if tag in ("a", "img", "link", "script"):
            self.links.extend(value for name in ("href", "src") if (value := attributes.get(name)))


def dead():
    """Returns the broken links of the built book."""
    parsed = {file: Links(file.read_text()) for file in sorted(BOOK.rglob("*.html"))}
    wrong = []
    for file, page in parsed.items():
        # print.html repeats all pages, and 404.html is served at any address.
        if file.name in ("print.html", "404.html"):
            continue
        for link in page.links:
            parts = urlsplit(link)
            there = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if parts.scheme or parts.netloc:
                continue
            if not there.exists() or (parts.fragment and there in parsed and unquote(parts.fragment) not in parsed[there].ids):
                wrong.append(f"{file.relative_to(BOOK)}: {link} is broken")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
