#!/usr/bin/env python3
"""`make console`: tests the web console in a real browser, on a Postgres of its own.

It visits every page in light and dark, wide and narrow, and checks it with axe. It clicks every action, shows hostile content, and
tests keys, renewal and pages without JavaScript. Waits are for what must come, however slow the machine; nothing is asserted of
time. `--shots` writes the screenshots of docs/console.md.
"""

import shutil
import sys
import tarfile
from contextlib import ExitStack
from urllib.parse import quote, urlparse

import local
import stages
import tools
from tools import PROJECT

PLAYWRIGHT = "playwright==1.65.2"
DRIVER = "pg8000==1.31.6"
AXE = "4.14.1"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SEED = PROJECT / "tests" / "console" / "seed.sql"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]
PATIENCE_MS = 120_000
HOSTILE_GROUP = '"><svg onload=window.hacked=1> / .. ?a=b&c#d'
HOSTILE_KIND = "hostile <script>window.hacked=1</script>"
PAGES = ["/", "/?span=day", "/events", "/events?status=FAILED", "/events/502", "/events/601", "/events/1062", "/groups",
         "/groups/customer-904", f"/groups/{quote(HOSTILE_GROUP, safe='')}", "/kinds", "/kinds/invoice_sent", f"/kinds/{quote(HOSTILE_KIND, safe='')}",
         "/dead", "/actions/replay?kind=invoice_sent&status=FAILED&since=1d",
         "/events?kind=refund_requested", "/actions/cancel?kind=refund_requested", "/actions/reschedule?now=on&kind=refund_requested", "/actions/reschedule?kind=refund_requested",
         "/actions/reschedule?kind=refund_requested&delay=1h", "/publish?kind=order_placed", "/actions", "/actions/note", "/actions/forget", "/doctor/run", "/services", "/schedules", "/leases", "/drains", "/retention", "/doctor",
         "/audit", "/nowhere"]
SHOTS = {"overview": "/", "event": "/events/502", "dead-letters": "/dead", "replay": "/actions/replay?kind=invoice_sent&status=FAILED&since=1d"}
# A page, what is folded there (one of the same name inside of it), fields, what is said, what is true afterwards.
ACTIONS = [
    ("/events/1062", "Run again now", {}, "requeued 1 event", "SELECT NOT delayed FROM tidegate.event_queue WHERE id = 1062"),
    ("/events/1020", "Reschedule", {"delay": "1h"}, "rescheduled", "SELECT delayed FROM tidegate.event_queue WHERE id = 1020"),
    ("/events/1021", "Cancel", {}, "cancelled 1 event", "SELECT status = 'FAILED' FROM tidegate.event_log WHERE id = 1021"),
    ("/events/17", "Replay", {}, "replayed 1 of 1 event", "SELECT count(*) = 1 FROM tidegate.event_queue WHERE replay_of = 17"),
    ("/groups/customer-901", "Retry", {}, "runs at the next drain", "SELECT bool_and(NOT delayed) FROM tidegate.event_queue WHERE group_key = 'customer-901'"),
    ("/groups/customer-902", "Skip", {}, "has ended as skipped", "SELECT count(*) = 1 FROM tidegate.event_queue WHERE group_key = 'customer-902' AND replay_of > 0"),
    ("/groups/customer-903", "Cancel", {}, "has ended as cancelled", "SELECT count(*) = 3 FROM tidegate.event_queue WHERE group_key = 'customer-903'"),
    ("/kinds/stock_counted", "Pause", {}, "is paused", "SELECT paused FROM tidegate.event_kind WHERE kind = 'stock_counted'"),
    ("/kinds/newsletter", "Resume", {}, "is resumed", "SELECT NOT paused FROM tidegate.event_kind WHERE kind = 'newsletter'"),
    ("/kinds/not_handled", "Retire", {}, "is retired", "SELECT count(*) = 0 FROM tidegate.event_kind WHERE kind = 'not_handled'"),
    ("/kinds/invoice_sent", "Change the policy", {"attempts": "9"}, "max_attempts 9 an operator", "SELECT policy->>'max_attempts' = '9' FROM tidegate.event_kind WHERE kind = 'invoice_sent'"),
    ("/kinds/invoice_sent", "Change the retention", {"completed": "3d"}, "retention of events that finish from now on", "SELECT retention_completed = '3 days' FROM tidegate.event_kind WHERE kind = 'invoice_sent'"),
    ("/services", "Limit another service", {"name": "mint", "limit": "2"}, "mint: at most 2 at once", "SELECT max_running = 2 FROM tidegate.service WHERE service = 'mint'"),
    ("/schedules", "Create or change a schedule", {"name": "hourly", "kind": "order_placed", "every": "1h", "payload": '{"a": 1}'}, "hourly is set", "SELECT count(*) = 1 FROM tidegate.schedule WHERE name = 'hourly'"),
]
# After everything else, because they change what is old.
LAST = [
    ("/retention", "Clean up", {"dry_run": True}, "dry run: a cleanup would do this", "SELECT count(*) = 1 FROM tidegate.event_log WHERE id = 702"),
    ("/retention", "Clean up", {}, "rows deleted in batches 1", "SELECT count(*) = 0 FROM tidegate.event_log WHERE id = 702"),
]
# The same in a row of a table: the row that has this text.
IN_ROWS = [
    ("/services", "courier", "Resume", "courier is called again", "SELECT state = 'closed' FROM tidegate.service WHERE service = 'courier'"),
    ("/services", "printer", "Pause", "printer is paused", "SELECT state = 'paused' FROM tidegate.service WHERE service = 'printer'"),
    ("/schedules", "nightly-stock", "Run now", "is published as event", "SELECT count(*) = 1 FROM tidegate.event_queue WHERE payload->>'scope' = 'all'"),
    ("/schedules", "nightly-stock", "Pause", "nightly-stock is paused", "SELECT paused FROM tidegate.schedule WHERE name = 'nightly-stock'"),
    ("/schedules", "every-quarter", "Resume", "every-quarter is resumed", "SELECT NOT paused FROM tidegate.schedule WHERE name = 'every-quarter'"),
    ("/schedules", "every-quarter", "Remove", "every-quarter is removed", "SELECT count(*) = 0 FROM tidegate.schedule WHERE name = 'every-quarter'"),
]
CATCH = """window.refused = []; addEventListener("securitypolicyviolation", (event) =>
    window.refused.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));"""
SERIOUS = """async () => (await axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]})).violations
    .filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`)"""


def main():
    try:
        needs = Needs()
    except tools.Unavailable as missing:
        print(f"nothing was tried in a browser: {missing}")
        stages.note("chromium", "make console")
        return 0
    programs = local.build("--bin", "tidegate")
    with ExitStack() as started:
        environment = {**local.environment(), **started.enter_context(local.postgres("--fast")), "TIDEGATE_ACTOR": "ada"}
        local.step("The schema", [programs / "tidegate", "migrate"], environment)
        database = Database(environment["DATABASE_URL"])
        database.run(SEED.read_text())
        server = started.enter_context(Server(programs / "tidegate", environment, "console", "--allow", "act", "--instance", "staging",
                                              "--colour", "amber"))
        print(f"\nThe console in {needs.browser}", flush=True)
        return try_it(needs, server, database, shots="--shots" in sys.argv)


class Needs:
    """What it takes beside the program. What the machine lacks is downloaded into .tools/."""

    def __init__(self):
        self.browser, self.libraries = browser()
        sys.path[:0] = [str(tools.install(package, dependencies=True)) for package in (PLAYWRIGHT, DRIVER)]
        self.axe = axe()


def browser():
    """The machine's Chromium, or Debian's package with its dependencies, unpacked into .tools/."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found:
        return found, {}
    root = tools.debian("chromium", "fonts-dejavu-core", all_needs=True)
    libraries = sorted({str(library.parent) for library in root.rglob("*.so*")})
    fonts = root / "fonts.conf"
    # Without the system's own rules the first font would be taken, which has serifs.
    rejected = "".join(f"<rejectfont><glob>*{name}*</glob></rejectfont>" for name in ("Serif", "TeXGyre"))
    fonts.write_text(f"<fontconfig><dir>{root}/usr/share/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{root}/cache</cachedir>"
                     f"<selectfont>{rejected}</selectfont></fontconfig>")
    return str(root / "usr/lib/chromium/chromium"), {"LD_LIBRARY_PATH": ":".join(libraries), "FONTCONFIG_FILE": str(fonts)}


def axe():
    """axe-core's one file, from npm."""
    folder = tools.TOOLS / f"axe-core-{AXE}"
    if not folder.is_dir():
        with tools.in_place_of(folder) as part:
            tools.npm(tools.node()[1], part, "pack", f"axe-core@{AXE}")
            with tarfile.open(next(part.glob("*.tgz"))) as packed:
                (part / "axe.min.js").write_bytes(packed.extractfile("package/axe.min.js").read())
    return (folder / "axe.min.js").read_text()


class Server(local.Served):
    """`tidegate console`, and the link that signs a person in."""

    def ready(self):
        super().ready()
        self.link = self.says(r"open (\S+)")


class Database:
    """The console's, looked at past the console."""

    def __init__(self, url):
        import pg8000.native
        place = urlparse(url)
        self.connection = pg8000.native.Connection(place.username, host=place.hostname, port=place.port, database=place.path[1:])

    def run(self, sql):
        return self.connection.execute_simple(sql).rows

    def holds(self, sql):
        return self.run(sql)[0][0]


class Found:
    """What was found wrong; the run goes on, to tell of everything at once."""

    def __init__(self):
        self.wrong = []

    def check(self, is_well, what):
        if not is_well:
            self.wrong.append(what)
            print(f"  WRONG: {what}", flush=True)


class Visit:
    """A browser's context in which everything odd is noted."""

    def __init__(self, browser, server, found, state=None, scripts=True, **how):
        self.server, self.found, self.scripts = server, found, scripts
        self.context = browser.new_context(storage_state=state, java_script_enabled=scripts, **how)
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.context.new_page()
        if scripts:
            self.page.add_init_script(CATCH)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: found.check(False, f"{self.page.url}: {error}"))
        self.page.on("request", self._request)

    def _console(self, message):
        # That a page is answered 404 or 409 is noted as an error by the browser, and wanted here.
        is_wanted = "status of 40" in message.text
        self.found.check(message.type not in ("error", "warning") or is_wanted, f"{self.page.url}: console: {message.text}")

    def _request(self, request):
        ours = request.url.startswith((self.server.url, "data:"))
        self.found.check(ours, f"{self.page.url}: a request to {request.url}")

    def go(self, path):
        self.page.goto(self.server.url + path, wait_until="load")
        if self.scripts:
            refused = self.page.evaluate("window.refused")
            self.found.check(not refused, f"{path}: the policy refused {refused}")
            self.found.check(self.page.evaluate("window.hacked === undefined"), f"{path}: what a publisher wrote was run")

    def is_narrow_enough(self, path):
        wide, inner = self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        self.found.check(wide <= inner, f"{path}: {wide} px wide on a screen of {inner} px")

    def act(self, label, fields, said, within=None, button=None):
        """Unfolds an action, fills in its form and sends it."""
        place = within or self.page.locator("#live")
        form = place.locator("details.act", has=self.page.locator(f"summary:text-is('{label}')")).first
        form.locator("summary").click()
        for name, value in fields.items():
            field = form.locator(f"[name={name}]")
            if field.evaluate("one => one.tagName") == "SELECT":
                field.select_option(value)
            elif value is True:
                field.check()
            else:
                field.fill(value)
        for field in form.locator("[name=reason]").all():
            field.fill("tried in a browser")
        form.locator("button", has_text=button or label).last.click()
        self.says(said)

    def says(self, text):
        self.page.wait_for_selector("p.done")
        done = self.page.locator("p.done").inner_text()
        self.found.check(text in done, f"{self.page.url}: must say {text!r}, says {done!r}")


def try_it(needs, server, database, shots):
    from playwright.sync_api import sync_playwright
    found = Found()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=needs.browser, args=FLAGS, env={**needs.libraries} or None)
        state = signed_in(browser, server, found)
        if shots:
            return take_shots(browser, server, found, state, database)
        look_at_everything(browser, server, found, state, needs.axe)
        zoom(browser, server, found, state)
        press_keys(browser, server, found, state)
        renew(browser, server, found, state, database)
        act(browser, server, found, state, database)
        replay_many(browser, server, found, state, database)
        change_many(browser, server, found, state, database)
        without_scripts(browser, server, found, state, database)
        maintain(browser, server, found, state, database)
        browser.close()
    print(f"{len(found.wrong)} things are wrong" if found.wrong else "everything is well")
    return int(bool(found.wrong))


def signed_in(browser, server, found):
    visit = Visit(browser, server, found)
    visit.page.goto(server.link)
    found.check(visit.page.url.rstrip("/") == server.url, f"the link leads to {visit.page.url}")
    state = visit.context.storage_state()
    visit.context.close()
    return state


def look_at_everything(browser, server, found, state, axe):
    for scheme in ("light", "dark"):
        for width in (360, 1280):
            print(f"every page, {scheme}, {width} px", flush=True)
            visit = Visit(browser, server, found, state, color_scheme=scheme, viewport={"width": width, "height": 800}, reduced_motion="reduce")
            for path in PAGES:
                visit.go(path)
                visit.is_narrow_enough(path)
                for details in visit.page.locator("details").all()[:40]:
                    details.evaluate("one => { one.open = true; }")
                visit.page.evaluate(axe)
                for serious in visit.page.evaluate(SERIOUS):
                    found.check(False, f"{path}, {scheme}, {width} px: {serious}")
            visit.context.close()


def zoom(browser, server, found, state):
    print("every page at 200 %", flush=True)
    visit = Visit(browser, server, found, state, viewport={"width": 640, "height": 400}, device_scale_factor=2)
    for path in PAGES:
        visit.go(path)
        visit.is_narrow_enough(path)
    visit.context.close()


def press_keys(browser, server, found, state):
    print("keys", flush=True)
    visit = Visit(browser, server, found, state)
    page = visit.page
    visit.go("/events")
    page.keyboard.press("/")
    found.check(page.evaluate("document.activeElement.matches('form.filters input')"), "/ must lead to the filter")
    page.evaluate("document.activeElement.blur()")
    for key in "jjk":
        page.keyboard.press(key)
    first = page.locator("tr.go").first.locator("a").first
    found.check(first.evaluate("one => one === document.activeElement"), "j, j and k must lead to the first row")
    wanted = first.get_attribute("href")
    page.keyboard.press("o")
    page.wait_for_url(f"**{wanted}")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog[open]", state="hidden")
    page.go_back()
    found.check(urlparse(page.url).path == "/events", "back must lead back")
    page.locator("body").press("Tab")
    visit.context.close()


def renew(browser, server, found, state, database):
    print("what renews itself", flush=True)
    visit = Visit(browser, server, found, state)
    page, parts = visit.page, []
    page.clock.install()
    page.on("request", lambda request: parts.append(request.url) if "hx-request" in request.headers else None)
    visit.go("/kinds")
    database.run("INSERT INTO tidegate.event_kind (kind) VALUES ('just_made')")
    page.clock.run_for(5100)
    page.wait_for_selector("text=just_made")
    found.check(len(parts) == 1, f"one request renews a page, {len(parts)} did")
    page.locator("#pulse").click()
    page.clock.run_for(60_000)
    found.check(len(parts) == 1, "a page that is paused asks for nothing")
    page.locator("#pulse").click()
    page.clock.fast_forward(16 * 60 * 1000)
    asked = len(parts)
    page.clock.run_for(60_000)
    found.check(len(parts) == asked, "a page that nobody touches asks for nothing after a quarter of an hour")
    database.run("DELETE FROM tidegate.event_kind WHERE kind = 'just_made'")
    visit.context.close()


def act(browser, server, found, state, database):
    print("every action by a click", flush=True)
    visit = Visit(browser, server, found, state)
    for path, label, fields, said, holds, *button in ACTIONS:
        visit.go(path)
        visit.act(label, fields, said, button=button[0] if button else None)
        found.check(database.holds(holds), f"{path}: {label}: {holds}")
    for path, name, label, said, holds in IN_ROWS:
        visit.go(path)
        row = visit.page.locator("tbody tr", has=visit.page.get_by_role("rowheader", name=name, exact=True))
        visit.act(label, {}, said, within=row)
        found.check(database.holds(holds), f"{path}: {name}: {label}: {holds}")
    visit.go("/events?correlation=order-9025")
    visit.page.locator(".pick").first.check()
    visit.page.locator("details.act summary", has_text="Act on the selected").click()
    visit.page.locator("form.picks [name=reason]").fill("tried in a browser")
    visit.page.get_by_role("button", name="Cancel").click()
    visit.says("cancelled 1 event")
    actors = database.run("SELECT DISTINCT actor FROM tidegate.audit WHERE reason = 'tried in a browser'")
    found.check(actors == [["ada"]], f"the audit names {actors}")
    visit.context.close()


def replay_many(browser, server, found, state, database):
    print("a replay of many", flush=True)
    visit = Visit(browser, server, found, state)
    page = visit.page
    visit.go("/dead")
    row = page.locator("tbody tr", has_text="invoice_sent").filter(has_text="timeout").first
    row.get_by_role("link", name="Replay …").click()
    page.wait_for_selector("section.confirm")
    database.run("""INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
        VALUES (701, 'invoice_sent', 'FAILED', 5, 5, '[{"code": "timeout"}]', now(), now(), now() + interval '9 days')""")
    page.locator("section.confirm [name=reason]").fill("the printer has paper")
    page.locator("section.confirm button").click()
    page.wait_for_selector("text=Nothing was done")
    page.go_back()
    page.reload()
    page.wait_for_selector("section.confirm")
    page.locator("section.confirm [name=reason]").fill("the printer has paper")
    page.locator("section.confirm button").click()
    visit.says("replayed")
    found.check(database.holds("SELECT count FROM tidegate.audit WHERE reason = 'the printer has paper' ORDER BY id DESC LIMIT 1") > 1, "nothing was replayed")
    visit.context.close()


def change_many(browser, server, found, state, database):
    print("all events of a filter, a publish, and a person who is forgotten", flush=True)
    visit = Visit(browser, server, found, state)
    page = visit.page
    visit.go("/events?kind=stock_counted")
    page.get_by_role("link", name="Start now all …").click()
    confirm(page)
    visit.says("rescheduled")
    visit.go("/events?kind=stock_counted")
    page.get_by_role("link", name="Cancel all …").click()
    confirm(page)
    visit.says("cancelled")
    found.check(database.holds("SELECT count(*) = 0 FROM tidegate.event_queue WHERE kind = 'stock_counted'"), "events of the filter are left")
    visit.go("/events")
    page.get_by_role("link", name="Publish an event …").click()
    page.locator("section.publish [name=kind]").select_option("order_placed")
    page.locator("section.publish [name=payload]").fill('{"order_id": 7}')
    page.locator("section.publish [name=group]").fill("customer-tried")
    page.locator("section.publish [name=reason]").fill("tried in a browser")
    page.get_by_role("button", name="Publish").click()
    visit.says("Published event")
    visit.go("/actions/forget")
    page.locator("form.filters [name=group]").fill("customer-tried")
    page.get_by_role("button", name="Dry run").click()
    page.wait_for_selector("section.confirm")
    page.locator("section.confirm [name=typed]").fill("customer-tried")
    confirm(page)
    visit.says("forgotten: 1 event")
    found.check(database.holds("SELECT count(*) = 0 FROM tidegate.event_queue WHERE group_key = 'customer-tried'"), "the person is still there")
    visit.context.close()


def maintain(browser, server, found, state, database):
    print("a cleanup", flush=True)
    visit = Visit(browser, server, found, state)
    database.run("""INSERT INTO tidegate.event_log (id, kind, status, attempts, max_attempts, errors, created_at, finished_at, expires_at)
        VALUES (702, 'invoice_sent', 'COMPLETED', 1, 5, '[]', now(), now(), now() - interval '1 hour')""")
    for path, label, fields, said, holds in LAST:
        visit.go(path)
        visit.act(label, fields, said)
        found.check(database.holds(holds), f"{path}: {label}: {holds}")
    visit.context.close()


def confirm(page):
    page.wait_for_selector("section.confirm")
    page.locator("section.confirm [name=reason]").fill("tried in a browser")
    page.locator("section.confirm button").click()


def without_scripts(browser, server, found, state, database):
    print("without scripts", flush=True)
    visit = Visit(browser, server, found, state, scripts=False)
    page = visit.page
    visit.go("/events")
    page.locator("form.filters [name=kind]").fill("invoice_sent")
    page.locator("form.filters [name=status]").select_option("FAILED")
    page.locator("form.filters button").click()
    page.wait_for_url("**/events?kind=invoice_sent&status=FAILED*")
    page.locator("tr.go a").first.click()
    page.wait_for_url("**/events/*")
    visit.go("/kinds/parcel_shipped")
    visit.act("Pause", {}, "is paused")
    found.check(database.holds("SELECT paused FROM tidegate.event_kind WHERE kind = 'parcel_shipped'"), "without scripts nothing was paused")
    visit.context.close()


def take_shots(browser, server, found, state, database):
    database.run("DELETE FROM tidegate.event_log WHERE id = 601")
    folder = PROJECT / "docs" / "img"
    folder.mkdir(exist_ok=True)
    for scheme, names in (("light", SHOTS), ("dark", {"overview-dark": "/"})):
        visit = Visit(browser, server, found, state, color_scheme=scheme, viewport={"width": 1180, "height": 860})
        for name, path in names.items():
            visit.go(path)
            place = folder / f"console-{name}.png"
            visit.page.screenshot(path=place)
            print(f"{place.relative_to(PROJECT)}: {place.stat().st_size // 1000} kB")
        visit.context.close()
    return int(bool(found.wrong))


if __name__ == "__main__":
    local.run_script(main)
