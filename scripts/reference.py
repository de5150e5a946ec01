#!/usr/bin/env python3
"""Part of `make check`: compares the reference pages and the runbooks with the sources. It reads text only and builds nothing.

It compares settings, verbs, actions, codes of events, SQLSTATEs, states, stop reasons, metrics, the report of a drain, the alarms of the
template and the checks of the doctor, in both directions. It also checks every `tidegate VERB --flag` that a page shows.
"""

import re
import sys
from pathlib import Path

from circles import TESTS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LIBRARY = ROOT / "crates" / "tidegate" / "src"
SQL = ROOT / "crates" / "tidegate" / "sql"
COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)

SETTING = re.compile(r'"((?:TIDEGATE|DATABASE)_[A-Z_]*[A-Z]|AWS_[A-Z_]*[A-Z]|ISSUING_[A-Z]+|SERVICES_OVER_HTTP|NO_COLOR|TRACEPARENT'
                     r'|OTEL_[A-Z_]*[A-Z]|AI_CHECK_RETRY_DELAY|[A-Z_]+_(?:URL|RETENTION))"')
# Pages that may document settings. The first one links to the others.
SETTINGS = ("reference/settings.md", "console.md", "tracing.md", "metrics.md")
# Settings of a crate that a checkout may lack.
OPTIONAL = {"TIDEGATE_CONSOLE_": "tidegate-console"}
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
ERRCODE = re.compile(r"ERRCODE = '(\w+)'")

# A command in a page's code, up to a comment, a pipe or the next command.
SHOWN = re.compile(r"(?<![\w./-])(?<!--package )tidegate ([a-z][a-z-]+)([^`\n#|;&]*)")
FENCED = re.compile(r"^```(?:sh|crontab|ini)?\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]+)")
# Flags that clap adds to every program.
USUAL = {"help", "version", "json"}


def main():
    wrong = [fault for look in (settings, verbs, actions, codes, sqlstates, states, stop_reasons, metrics, report, alarms, checks, commands) for fault in look()]
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print("the reference pages agree with the sources")
    return int(bool(wrong))


def settings():
    read = set()
    for file in rust(ROOT / "src", *(crate / "src" for crate in sorted((ROOT / "crates").iterdir()))):
        read.update(SETTING.findall(code_of(file)))
    told = {name for page in SETTINGS if (DOCS / page).exists() for name in re.findall(r"`([A-Z][A-Z0-9_]+)[`=]", page_of(page))}
    page = page_of("reference/settings.md")
    absent = tuple(prefix for prefix, crate in OPTIONAL.items() if not (ROOT / "crates" / crate).is_dir())
    ours = {name for name in OURS.findall(page) if not absent or not name.startswith(absent)}
    return missing("reference/settings.md", "setting", read - told) + made_up("reference/settings.md", "setting", ours - read)


def verbs():
    page, there = page_of("reference/verbs.md"), verbs_of_all_programs()
    named = set(re.findall(r"`([a-z-]+)`", page))
    return missing("reference/verbs.md", "verb", there - named) + made_up("reference/verbs.md", "verb", first_column(page) - there)


def verbs_of_all_programs():
    """Returns the verbs of the library's list, without those that the command line skips, and the command line's own."""
    listed = {name for skipped, name in listed_verbs() if not skipped}
    source = code_of(ROOT / "crates" / "tidegate-cli" / "src" / "args.rs")
    body = re.search(r"pub enum Verb \{(.*?)^\}", source, re.DOTALL | re.MULTILINE)[1]
    own = set(re.findall(r"^    ([A-Z]\w*)(?:\(| \{|,)", body, re.MULTILINE)) - {"Listed"}
    return {kebab(name) for name in listed | own}


def listed_verbs():
    body = re.search(r"macro_rules! each_verb \{(.*?)^\}", code_of(LIBRARY / "admin" / "mod.rs"), re.DOTALL | re.MULTILINE)[1]
    return re.findall(r"(#\[command\(skip\)\] )?\b([A-Z]\w*)\(\w+Request\)", body)


def actions():
    there = {kebab(name).replace("-", "_") for _, name in listed_verbs()}
    return compare("reference/actions.md", "action", there, first_column(page_of("reference/actions.md")))


def codes():
    given, words = set(), set()
    for file in rust(LIBRARY, ROOT / "src"):
        text = code_of(file)
        words.update(re.findall(r'"([a-z_]+)"', text))
        if file.is_relative_to(LIBRARY):
            given.update(code for pattern in CODE_PATTERNS for code in pattern.findall(text))
    for file in SQL.glob("V*.sql"):
        found = {code for pattern in SQL_CODES for code in pattern.findall(file.read_text())}
        given |= found
        words |= found
    told = first_column(section(page_of("reference/errors.md"), "Codes of events"))
    return missing("reference/errors.md", "code", given - told) + made_up("reference/errors.md", "code", told - words)


def sqlstates():
    raised = {state for file in SQL.glob("V*.sql") for state in ERRCODE.findall(file.read_text())}
    page = section(page_of("reference/errors.md"), "SQLSTATEs")
    told = set(re.findall(r"`(\w+)`", page))
    invented = {state for state in told if state.startswith("TG")} - raised
    return missing("reference/errors.md", "SQLSTATE", raised - told) + made_up("reference/errors.md", "SQLSTATE", invented)


def states():
    page = page_of("reference/states.md")
    events = set(re.findall(r"^\| `([A-Z_]+)` \| `event_", page, re.MULTILINE))
    list_of = re.search(r"const STATUSES: \[&str; \d+\] = \[(.*?)\];", code_of(LIBRARY / "look.rs"), re.DOTALL)[1]
    there = set(re.findall(r'"([A-Z_]+)"', list_of))
    stated = re.search(r"CHECK \(state IN \((.*?)\)\)", (SQL / "V0001__tables.sql").read_text())[1]
    services = first_column(section(page, "States of a service"))
    return compare("reference/states.md", "state", there, events) + \
        compare("reference/states.md", "state of a service", set(re.findall(r"'(\w+)'", stated)), services)


def stop_reasons():
    source = code_of(LIBRARY / "drain" / "report.rs")
    body = re.search(r"pub enum StopReason \{(.*?)\}", source, re.DOTALL)[1]
    there = {kebab(name).replace("-", "_") for name in re.findall(r"^    ([A-Z]\w*),", body, re.MULTILINE)}
    return compare("reference/states.md", "stop reason", there, first_column(section(page_of("reference/states.md"), "Why a drain ended")))


def metrics():
    source = code_of(LIBRARY / "metrics.rs")
    named = re.findall(r'\.metric\(\s*"([A-Z]\w+)"', source) + re.findall(r'^\s*\("([A-Z]\w+)", report\.', source, re.MULTILINE)
    page = page_of("reference/metrics.md")
    return missing("reference/metrics.md", "metric", {name for name in named if f"`{name}`" not in page})


def report():
    """Compares the fields of a drain's report and of its `cost`."""
    source = code_of(LIBRARY / "drain" / "report.rs")
    there = {name for struct in ("DrainReport", "Cost")
             for name in re.findall(r"^    pub (\w+):", re.search(rf"pub struct {struct} \{{(.*?)^\}}", source, re.DOTALL | re.MULTILINE)[1],
                                    re.MULTILINE)}
    told = set(re.findall(r"`([a-z_]+)`", section(page_of("reference/metrics.md"), "The report")))
    fields = first_column(section(page_of("reference/metrics.md"), "The report")) - {"action"}
    return missing("reference/metrics.md", "field", there - told) + made_up("reference/metrics.md", "field", fields - there)


def alarms():
    there = set(re.findall(r"AlarmName: !Sub \$\{AWS::StackName\}-([a-z-]+)", (ROOT / "template.yaml").read_text()))
    told = set(re.findall(r"^### ([a-z-]+)$", section(page_of("guides/incident.md"), "Alarms"), re.MULTILINE))
    return compare("guides/incident.md", "alarm", there, told)


def checks():
    there = set(re.findall(r'of_(?:server|queue)\("([a-z ]+)"', code_of(LIBRARY / "doctor" / "mod.rs")))
    rows = re.findall(r"^\| ([a-z ]+) \|", section(page_of("guides/incident.md"), "Findings of the doctor"), re.MULTILINE)
    return compare("guides/incident.md", "check of the doctor", there, set(rows) - {"check"})


def commands():
    """Checks the commands that pages show, of all programs and of the shipped application."""
    sources = [code_of(file) for file in rust(*(crate / "src" for crate in sorted((ROOT / "crates").iterdir())), ROOT / "src")]
    own = {name for source in sources for name in re.findall(r'^\s*name = "([a-z-]+)",?$|#\[command\(name = "([a-z-]+)"', source, re.MULTILINE)
           for name in name if name}
    known = verbs_of_all_programs() | own | {"help"}
    flags = USUAL | {name for source in sources for name in flags_of(source)}
    wrong = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]:
        text = page.read_text()
        for verb, rest in [found for code in FENCED.findall(text) + INLINE.findall(text) for found in SHOWN.findall(code)]:
            place = f"{page.relative_to(ROOT)}: tidegate {verb}"
            wrong += [] if verb in known else [f"{place}: there is no such verb"]
            wrong += [f"{place}: there is no flag --{flag}" for flag in OPTION.findall(rest) if flag not in flags]
    return sorted(set(wrong))


def flags_of(source):
    """Returns the names of the flags: the name given to `long`, or the field's."""
    for options, field in re.findall(r"#\[arg\(((?:(?!\)\]).)*)\)\]\s*(?:#\[serde\([^\]]*\)\]\s*)?(?:pub(?:\(\w+\))? )?(\w+):", source, re.DOTALL):
        if not re.search(r"\blong\b", options):
            continue
        named = re.search(r'long = "([a-z-]+)"', options)
        yield named[1] if named else field.replace("_", "-")


def rust(*folders):
    return sorted(file for folder in folders for file in folder.rglob("*.rs"))


def code_of(file):
    """Returns the source without tests and comments."""
    text = file.read_text()
    tests = TESTS.search(text)
    return COMMENT.sub("", text[:tests.start()] if tests else text)


def page_of(name):
    return (DOCS / name).read_text()


def section(page, heading):
    """Returns the text below a heading, up to the next heading of its level."""
    found = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""


def first_column(page):
    """Returns the words in backticks in the first cell of every row."""
    cells = re.findall(r"^\| ([^|]*) \|", page, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`([a-z_-]+)`", cell)}


def kebab(name):
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def compare(page, what, there, told):
    return missing(page, what, there - told) + made_up(page, what, told - there)


def missing(page, what, names):
    return [f"docs/{page}: the {what} {name} is missing" for name in sorted(names)]


def made_up(page, what, names):
    return [f"docs/{page}: there is no {what} {name}" for name in sorted(names)]


if __name__ == "__main__":
    sys.exit(main())
